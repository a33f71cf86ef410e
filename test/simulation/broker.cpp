#include "test/simulation/broker.hpp"

#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "server/broker/session/session_state.hpp"

namespace gpuwire::simulation {

using server::IpcMessageKind;
using server::SessionChange;
using server::SessionPhase;

struct Broker::State {
  std::mutex mutex;
  SessionPhase phase = SessionPhase::begins;  // under mutex
  unsigned ended = 0;                         // under mutex
};

Broker::Broker(std::function<void(std::string)> fail) : fail_(std::move(fail)), state_(std::make_unique<State>()) {
  if (!server::open_ipc_message(own_, worker_)) throw std::runtime_error("no socket pair");
}

Broker::~Broker() = default;

void Broker::hear() {
  std::lock_guard lock(state_->mutex);
  server::IpcMessage said;
  while (server::receive_ipc_message(own_.get(), false, said) == server::IpcMessageReceived::message) {
    switch (said.kind) {
      case IpcMessageKind::begun: state_->phase = step_of(state_->phase, SessionChange::begun).next; break;
      case IpcMessageKind::detached: state_->phase = step_of(state_->phase, SessionChange::detached).next; break;
      case IpcMessageKind::attached: state_->phase = step_of(state_->phase, SessionChange::attached).next; break;
      case IpcMessageKind::ended: ++state_->ended; break;
      default: fail_("the broker heard what no worker says");
    }
  }
}

void Broker::crash(server::Reports& reports) {
  hear();
  std::lock_guard lock(state_->mutex);
  state_->phase = SessionPhase::begins;
  state_->ended = 0;
  reports.tell_again();
}

void Broker::check_end() {
  hear();
  std::lock_guard lock(state_->mutex);
  const bool known = state_->phase == SessionPhase::running || state_->phase == SessionPhase::detached;
  if (!known || state_->ended != 1)
    fail_(fmt::format("the broker believes the session to be {} and has heard of {} ends", name_of(state_->phase),
                      state_->ended));
}

}  // namespace gpuwire::simulation
