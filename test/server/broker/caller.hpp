// A client of a broker's sessions, without a login.
#pragma once

#include <cerrno>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "server/broker/broker.hpp"
#include "test/server/broker/running_broker.hpp"

namespace gpuwire::test {

using server::Broker;

// A client with a known tenant: it requests a session, and is served on its end of a socket pair when its turn comes.
class Caller {
 public:
  Caller(RunningBroker& broker, server::LoginRequest request) {
    broker.act([&](Broker& of) {
      session_ = of.sessions().request(
          std::move(request),
          [heard = heard_, &of](scheduler::SessionId session, const server::AdmissionAnswer& answer) {
            heard->hear(of, session, answer);
          });
    });
  }
  ~Caller() { leave(); }
  // Returns the devices that its worker sees; "": it was not served before the deadline.
  std::string served_with() {
    std::string text;
    char c = 0;
    if (!eventually([&] { return told() == "granted"; })) return text;
    for (size_t skipped = 0; skipped < sizeof(pid_t); ++skipped) {
      if (!receive(c)) return text;
    }
    while (receive(c) && c != '\n') text += c;
    return text;
  }
  std::string told() {
    std::lock_guard lock(heard_->mutex);
    return heard_->told;
  }
  void leave() {
    std::lock_guard lock(heard_->mutex);
    heard_->own.reset();
    heard_->left = true;
  }
  scheduler::SessionId session() const { return session_; }

 private:
  // The broker may answer a caller that has left: at its end it refuses all queued sessions.
  struct Heard {
    std::mutex mutex;
    std::string told;
    server::OwnedDescriptor own;
    bool left = false;

    void hear(Broker& of, scheduler::SessionId session, const server::AdmissionAnswer& answer) {
      server::OwnedDescriptor ours;
      if (std::holds_alternative<server::AdmissionGranted>(answer)) {
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        ours.reset(ends[0]);
        of.sessions().serve(session, server::OwnedDescriptor(ends[1]), {});
      }
      std::lock_guard lock(mutex);
      if (ours && !left) own = std::move(ours);
      if (auto* queued = std::get_if<server::AdmissionQueued>(&answer)) told = "place " + std::to_string(queued->place);
      else if (auto* refused = std::get_if<server::AdmissionRefused>(&answer)) told = refused->reason;
      else told = "granted";
    }
  };

  // SIGCHLD of the broker's processes interrupts any waiting thread of this process.
  bool receive(char& c) {
    ssize_t got;
    do got = ::recv(heard_->own.get(), &c, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 1;
  }

  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  scheduler::SessionId session_{};
};

}  // namespace gpuwire::test
