// Broker is a simulated broker's state of the session, from its worker's reports.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/ipc/channel.hpp"
#include "server/worker/session/reports.hpp"

namespace gpuwire::simulation {

// Any thread. It is killed from time to time, and its successor gets the reports again.
class Broker {
 public:
  explicit Broker(std::function<void(std::string)> fail);
  ~Broker();
  server::ipc::Channel& workers_end() { return *worker_; }

  // Handles the worker's messages.
  void receive();
  // Replaces the broker: the next one has the state noted when the worker got its client, and requests the reports
  // again.
  void crash(server::Reports& reports);
  // Checks the state after the worker's process has ended.
  void check_end();

 private:
  struct State;
  std::optional<server::ipc::Channel> own_, worker_;
  const std::function<void(std::string)> fail_;
  const std::unique_ptr<State> state_;
};

}  // namespace gpuwire::simulation
