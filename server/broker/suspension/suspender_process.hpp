// SuspenderProcess is the broker's side of gpuwire-suspender (server/suspender): it starts the process, passes orders
// to it, and restarts it when it ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "scheduler/types.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/worker/child_output.hpp"
#include "server/ipc/event_channel.hpp"

namespace gpuwire::server {

// Carries out the orders to move sessions' device memory.
class Mover {
 public:
  virtual ~Mover() = default;
  // Returns why nothing can be moved now; empty: orders are carried out.
  virtual std::string why_no_moves() const = 0;
  // `session`: that of the order's process. False: the order was not passed on, and is to be given again after
  // Events::ready.
  virtual bool send(scheduler::SessionId session, ipc::Move order) = 0;
};

// The broker's thread only. The object owns the process, and ends it in its destructor.
class SuspenderProcess final : public Mover {
 public:
  struct Events {
    std::function<void()> ready;  // orders are carried out from now on
    std::function<void(const ipc::Moved&)> moved;
    std::function<void()> gone;  // its orders are lost; `ready` follows
  };
  struct Command {
    std::string program;
    std::vector<std::string> arguments;  // without the program's name
  };
  SuspenderProcess(boost::asio::io_context& io, Command command);
  ~SuspenderProcess() override;
  SuspenderProcess(const SuspenderProcess&) = delete;
  SuspenderProcess& operator=(const SuspenderProcess&) = delete;

  void start(Events events);
  pid_t pid() const { return pid_; }

  std::string why_no_moves() const override { return why_not_; }
  bool send(scheduler::SessionId session, ipc::Move order) override;

 private:
  void start_again();
  tl::expected<void, std::string> start_now();
  void on_message(ipc::Message message);
  void kill(const std::string& why);
  void ended();
  void again(const std::string& why);

  boost::asio::io_context& io_;
  const Command command_;
  Events events_;
  std::string why_not_ = "gpuwire-suspender is starting";
  boost::asio::posix::stream_descriptor process_;  // a pidfd
  boost::asio::steady_timer again_timer_;
  std::unique_ptr<ipc::EventChannel> channel_;
  std::unique_ptr<ChildOutput> output_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point started_;
  uint32_t delay_ms_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
