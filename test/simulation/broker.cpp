#include "test/simulation/broker.hpp"

#include <mutex>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "server/broker/session/session_state.hpp"

namespace gpuwire::simulation {

namespace ipc = server::ipc;
using server::SessionChange;
using server::SessionPhase;

struct Broker::State {
  std::mutex mutex;
  SessionPhase phase = SessionPhase::begins;  // under mutex
  unsigned ended = 0;                         // under mutex
};

Broker::Broker(std::function<void(std::string)> fail) : fail_(std::move(fail)), state_(std::make_unique<State>()) {
  server::OwnedDescriptor own, worker;
  if (!server::ipc::open_pair(own, worker)) throw std::runtime_error("no socket pair");
  own_.emplace(std::move(own), server::ipc::Speaker::worker, server::ipc::kWorkerWaitingMax);
  worker_.emplace(std::move(worker), server::ipc::Speaker::broker, server::ipc::kWorkerWaitingMax);
}

Broker::~Broker() = default;

void Broker::receive() {
  std::lock_guard lock(state_->mutex);
  auto happen = [this](SessionChange change) { state_->phase = step_of(state_->phase, change).next; };
  std::optional<ipc::Message> said;
  do {
    // Messages that did not fit into the pair follow now.
    worker_->drain();
    while (own_->try_receive(said) == ipc::Channel::Received::message)
      std::visit(
          ipc::Match{[&](ipc::Begun&) { happen(SessionChange::begun); },
                     [&](ipc::Detached&) { happen(SessionChange::detached); },
                     [&](ipc::Attached&) { happen(SessionChange::attached); }, [&](ipc::Ended&) { ++state_->ended; },
                     [&](auto&) { fail_("the broker heard what no worker says of its session"); }},
          *said);
  } while (worker_->waiting() > 0);
}

void Broker::crash(server::Reports& reports) {
  receive();
  std::lock_guard lock(state_->mutex);
  state_->phase = SessionPhase::begins;
  state_->ended = 0;
  reports.notify_again();
}

void Broker::check_end() {
  receive();
  std::lock_guard lock(state_->mutex);
  const bool known = state_->phase == SessionPhase::running || state_->phase == SessionPhase::detached;
  if (!known || state_->ended != 1)
    fail_(fmt::format("the broker believes the session to be {} and has heard of {} ends", name_of(state_->phase),
                      state_->ended));
}

}  // namespace gpuwire::simulation
