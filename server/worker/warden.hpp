// Makes sure that a worker's process ends: a session may be stuck in a driver call, and then only the end of the process frees the device.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "server/broker/handoff.hpp"

namespace gpuwire::server {

// A thread that watches the broker's descriptor and the client's socket. When either is closed, the broker says stop, or begin_grace() is
// called, the process has kEndGraceMs left, then the warden calls _exit. It is never stopped: a process that ends takes it along.
class Warden {
 public:
  static constexpr int kExitOverdue = 3;  // the process's exit code when the warden had to end it

  // On the warden's thread; none may block. `stop`: the broker ends the session, once. `gone`: the client has closed its side, once. `hear`: what else the
  // broker says.
  struct Hooks {
    std::function<void(std::string reason)> stop;
    std::function<void()> gone;
    std::function<void(Handoff)> hear;
  };
  Warden(int handoff, int socket, Hooks hooks);
  Warden(const Warden&) = delete;
  Warden& operator=(const Warden&) = delete;
  ~Warden();

  void begin_grace();

 private:
  void watch();
  // Reads what the broker says. True: the process has to end.
  bool hear_broker();

  const int handoff_;
  const int socket_;
  const Hooks hooks_;
  OwnedDescriptor wake_;
  OwnedDescriptor quit_;
  std::thread thread_;
};

}  // namespace gpuwire::server
