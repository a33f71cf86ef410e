// What a broker knows of the simulated session: what its worker has told.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/ipc/channel.hpp"
#include "server/worker/session/reports.hpp"

namespace gpuwire::simulation {

// Any thread. It is killed every now and then, and the next one is told again.
class Broker {
 public:
  explicit Broker(std::function<void(std::string)> fail);
  ~Broker();
  server::ipc::Channel& workers_end() { return *worker_; }

  // Takes what the worker has said.
  void receive();
  // The next broker knows what was noted when the worker got its client, and asks.
  void crash(server::Reports& reports);
  // The worker's process is gone.
  void check_end();

 private:
  struct State;
  std::optional<server::ipc::Channel> own_, worker_;
  const std::function<void(std::string)> fail_;
  const std::unique_ptr<State> state_;
};

}  // namespace gpuwire::simulation
