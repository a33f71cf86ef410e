// The suspender and the workers of tests of suspensions.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <sys/eventfd.h>

#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspender_process.hpp"

namespace gpuwire::test {

struct TestMover final : server::Mover {
  std::string why_no_moves() const override { return why; }
  bool send(scheduler::SessionId, server::ipc::Move order) override {
    orders.push_back(std::move(order));
    return true;
  }
  std::string why;
  std::vector<server::ipc::Move> orders;
};

struct TestControl final : server::SessionControl {
  bool send(scheduler::SessionId session, server::ipc::Message message) override {
    if (auto* warning = std::get_if<server::ipc::Warn>(&message)) {
      warned += warning->text + "; ";
      return true;
    }
    const bool quiesce = std::holds_alternative<server::ipc::Quiesce>(message);
    sent += quiesce ? "quiesce " : "go_on ";
    if (quiesce) quiesced.push_back(session);
    return true;
  }
  void warn(scheduler::SessionId, const std::string&) override {}
  bool stop(scheduler::SessionId, const server::StopOrder& order) override {
    stopped = order.why;
    return true;
  }
  server::OwnedDescriptor worker_process(scheduler::SessionId) override {
    return reachable ? server::OwnedDescriptor(::eventfd(0, EFD_CLOEXEC)) : server::OwnedDescriptor();
  }
  void note(scheduler::SessionId) override { ++noted; }
  void reconsider_waiting() override {}
  std::string sent, warned, stopped;
  std::vector<scheduler::SessionId> quiesced;
  bool reachable = true;
  int noted = 0;
};

}  // namespace gpuwire::test
