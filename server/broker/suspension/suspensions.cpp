#include "server/broker/suspension/suspensions.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

using P = SuspensionPhase;
using C = SuspensionChange;
using A = SuspensionAction;

constexpr uint64_t kMiB = 1u << 20;
constexpr const char* kWaits = "waits until the device has room for it";

std::string size_text(uint64_t bytes) {
  constexpr uint64_t kGiB = kMiB << 10;
  return bytes < kGiB ? fmt::format("{} MiB", bytes / kMiB) : fmt::format("{:.3g} GiB", double(bytes) / double(kGiB));
}
std::string mib(uint64_t bytes) { return fmt::format("{} MiB", (bytes + kMiB - 1) / kMiB); }

}  // namespace

// --- administrators ------------------------------------------------------------------------------------------------

std::string Suspensions::why_not(const SessionRecord& session, const SuspensionRequester& requester) const {
  if (session.management) return "it has no device memory: its program only queries NVML";
  if (session.state != SessionState::running && session.state != SessionState::detached)
    return fmt::format("it is {}", name_of(session.state));
  if (std::string why = parts_.mover.why_no_moves(); !why.empty()) return why;
  if (std::string why = parts_.memory.why_not_released(session); !why.empty()) return why;
  return why_no_host_room(session, requester);
}

// A move takes the host's memory only as it is carried out, so the moves that are still to be done count.
Suspensions::OnHost Suspensions::on_host(std::optional<SessionId> but) const {
  OnHost bytes;
  for (const auto& [number, other] : sessions_) {
    if (number == but) continue;
    bytes.all += other->host_bytes;
    if (other->phase == P::moving_out || other->phase == P::recalled) bytes.moving += other->host_bytes;
  }
  return bytes;
}

std::string Suspensions::why_no_host_room(const SessionRecord& session, const SuspensionRequester& requester) const {
  const uint64_t own = parts_.memory.releasable_bytes(session);
  const OnHost others = on_host(session.number);
  const uint64_t tenant_max = tenant_memory_max(session.tenant_id);
  if (memory_max_bytes_ != 0 && own + others.all > memory_max_bytes_)
    return fmt::format("suspend_memory is too small: {} are needed, and suspended sessions have {} of {}", mib(own),
                       mib(others.all), mib(memory_max_bytes_));
  if (const uint64_t tenants = host_bytes(session.tenant_id, session.number);
      tenant_max != 0 && own + tenants > tenant_max)
    return fmt::format(
        "the tenant's suspend_memory is too small: {} are needed, and its suspended sessions have {} of {}", mib(own),
        mib(tenants), mib(tenant_max));
  const bool by_user_alone = requester.user && tenant_max == 0 && memory_max_bytes_ == 0 && parts_.users_memory_max;
  const uint64_t users_max = by_user_alone ? parts_.users_memory_max() : 0;
  if (users_max != 0 && own + others.all > users_max)
    return fmt::format(
        "the server has no suspend_memory, and without it users suspend at most {}: {} are needed, and "
        "suspended sessions have {}",
        mib(users_max), mib(own), mib(others.all));
  const uint64_t needed = own + others.moving;
  if (const uint64_t available = parts_.host_available(); available != 0 && needed > available)
    return fmt::format("the server's own memory is too small: {} are needed, and {} are free", mib(needed),
                       mib(available));
  return {};
}

uint64_t Suspensions::host_room() const {
  const OnHost others = on_host(std::nullopt);
  const uint64_t available = parts_.host_available();
  uint64_t room = available == 0 ? UINT64_MAX : scheduler::difference(available, others.moving);
  if (memory_max_bytes_ != 0) room = std::min(room, scheduler::difference(memory_max_bytes_, others.all));
  return room;
}

uint64_t Suspensions::host_room(scheduler::TenantId tenant) const {
  const uint64_t most = tenant_memory_max(tenant);
  return most == 0 ? UINT64_MAX : scheduler::difference(most, host_bytes(tenant));
}

void Suspensions::suspend(SessionId number, const SuspensionRequester& requester, Done done) {
  const SessionRecord* session = parts_.registry.find(number);
  if (!session) return done(tl::unexpected(fmt::format("there is no session {}", uint64_t(number))));
  if (phase_of(number) == P::suspended) return done("already suspended");
  if (phase_of(number) == P::running)
    if (std::string why = why_not(*session, requester); !why.empty()) return done(tl::unexpected(std::move(why)));
  auto& suspended = sessions_[number];
  if (!suspended) {
    suspended = std::make_unique<Suspended>(parts_.io);
    suspended->tenant = session->tenant_id;
  }
  if (suspended->phase == P::running) suspended->requester = requester;
  suspended->suspends.push_back(std::move(done));
  happen(number, C::suspend, "it is returning to the device");
}

void Suspensions::resume(SessionId number, Done done) {
  switch (phase_of(number)) {
    case P::running:
      return done(tl::unexpected(parts_.registry.find(number)
                                     ? std::string("it is not suspended")
                                     : fmt::format("there is no session {}", uint64_t(number))));
    case P::quiescing: return done(tl::unexpected(std::string("it is being suspended")));
    case P::lost: return done(tl::unexpected(std::string("it is ending")));
    case P::awaiting_memory: return done(waits_text(number));
    case P::moving_out:
    case P::recalled:
    case P::suspended:
    case P::moving_in: break;
  }
  sessions_.at(number)->resumes.push_back(std::move(done));
  want(number);
}

void Suspensions::answer(SessionId number, std::vector<Done> Suspended::*who, const Answer& what) {
  auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  for (Done& done : std::exchange((*found->second).*who, {})) done(what);
}

uint64_t Suspensions::host_bytes(scheduler::TenantId tenant, std::optional<SessionId> but) const {
  uint64_t bytes = 0;
  for (const auto& [number, suspended] : sessions_)
    if (suspended->tenant == tenant && number != but) bytes += suspended->host_bytes;
  return bytes;
}

void Suspensions::count_host(Suspended& suspended, uint64_t bytes) {
  if (std::exchange(suspended.host_bytes, bytes) != bytes && parts_.host_changed) parts_.host_changed(suspended.tenant);
}

// --- from phase to phase -------------------------------------------------------------------------------------------

SuspensionPhase Suspensions::phase_of(SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? P::running : found->second->phase;
}

void Suspensions::happen(SessionId number, SuspensionChange change, const std::string& why) {
  const SuspensionPhase before = phase_of(number);
  const SuspensionStep step = step_of(before, change);
  if (auto found = sessions_.find(number); found != sessions_.end()) found->second->phase = step.next;
  const SessionRecord* session = parts_.registry.find(number);
  if (!session) return;
  if (step.next != before) {
    uint64_t bytes = 0;
    if (step.action == A::release || step.action == A::try_later) bytes = parts_.memory.release_memory(*session);
    if (step.action == A::finish) returned_[number] = {parts_.now(), parts_.now() - sessions_.at(number)->room_at};
    auto found = sessions_.find(number);
    parts_.registry.suspension(number, state_of(step.next), bytes,
                               found == sessions_.end() ? std::string() : found->second->requester.name);
    // Before an order is sent, so that the next broker gives it again.
    parts_.control.note(number);
  }
  act(number, step.action, why);
  auto found = sessions_.find(number);
  if (found != sessions_.end() && found->second->phase == P::running && found->second->suspends.empty() &&
      found->second->resumes.empty())
    sessions_.erase(found);
}

// A session that moves out while it is wanted would return at once.
void Suspensions::want(SessionId number) {
  const SessionRecord* session = parts_.registry.find(number);
  if (session && phase_of(number) == P::moving_out && !why_held(*session).empty()) sessions_.at(number)->wanted = true;
  else happen(number, C::wanted);
}

void Suspensions::act(SessionId number, SuspensionAction action, const std::string& why) {
  const SessionRecord& session = *parts_.registry.find(number);
  switch (action) {
    case A::nothing: return;
    case A::ask: return ask_worker(number);
    case A::refuse: return answer(number, &Suspended::suspends, tl::unexpected(why));
    case A::order_out:
      sessions_.at(number)->answer_timer.cancel();
      if (std::string full = why_no_host_room(session, sessions_.at(number)->requester); !full.empty())
        return happen(number, C::refused, full);
      count_host(*sessions_.at(number), parts_.memory.releasable_bytes(session));
      moves_.push_back(number);
      return next_move();
    case A::stay:
      parts_.control.send(number, ipc::GoOn{});
      sessions_.at(number)->wanted = false;
      sessions_.at(number)->answer_timer.cancel();
      count_host(*sessions_.at(number), 0);
      answer(number, &Suspended::suspends, tl::unexpected(why));
      return answer(number, &Suspended::resumes, "resumed");
    case A::go_on: parts_.control.send(number, ipc::GoOn{}); return;
    case A::release: {
      offer(sessions_.at(number)->requester.returns);
      answer(number, &Suspended::suspends, "suspended, " + mib(session.suspended_bytes));
      auto found = sessions_.find(number);
      if (found != sessions_.end() && std::exchange(found->second->wanted, false)) want(number);
      return;
    }
    case A::await:
      await_memory(number);
      poll_returns();
      return answer_waiting(number);
    case A::try_later:
      await_memory(number);
      parts_.memory.offer_memory();
      poll_returns_later();
      return answer_waiting(number);
    case A::order_in:
      answer(number, &Suspended::suspends, tl::unexpected(std::string("its program has made a call meanwhile")));
      sessions_.at(number)->room_at = parts_.now();
      moves_.push_back(number);
      return next_move();
    case A::finish:
      parts_.control.send(number, ipc::GoOn{});
      sessions_.at(number)->notice_timer.cancel();
      count_host(*sessions_.at(number), 0);
      return answer(number, &Suspended::resumes, "resumed");
    case A::end: {
      const std::string reason = "its device memory is lost: " + why;
      answer(number, &Suspended::suspends, tl::unexpected(reason));
      answer(number, &Suspended::resumes, tl::unexpected(reason));
      parts_.control.stop(number, reason);
      return;
    }
  }
}

void Suspensions::ask_worker(SessionId number) {
  if (!parts_.control.send(number, ipc::Quiesce{})) {
    // Its end follows, or the time-out below.
    spdlog::debug("session {}: its worker takes no request to rest", uint64_t(number));
  }
  boost::asio::steady_timer& timer = sessions_.at(number)->answer_timer;
  timer.expires_after(std::chrono::milliseconds(kQuiesceMs));
  timer.async_wait(lifetime_.guard([this, number](boost::system::error_code error) {
    if (!error && phase_of(number) == P::quiescing)
      happen(number, C::unanswered,
             fmt::format("a call of its program has not returned within {} s", kQuiesceMs / 1000));
  }));
}

// --- memory --------------------------------------------------------------------------------------------------------

std::string Suspensions::waits_text(SessionId number) const {
  const SessionRecord* session = parts_.registry.find(number);
  const std::string held = session ? why_held(*session) : std::string();
  return held.empty() ? kWaits : "waits: " + held;
}

void Suspensions::answer_waiting(SessionId number) {
  if (phase_of(number) == P::awaiting_memory) answer(number, &Suspended::resumes, waits_text(number));
}

void Suspensions::await_memory(SessionId number) {
  returns_.push_back(number);
  if (return_waits_) return_waits_();
}

void Suspensions::offer(bool to_returns_first) {
  if (to_returns_first) poll_returns();
  parts_.memory.offer_memory();
  poll_returns();
}

// The oldest first; a later one whose memory fits goes on meanwhile.
void Suspensions::poll_returns() {
  for (SessionId number : std::exchange(returns_, {})) {
    const SessionRecord* session = parts_.registry.find(number);
    if (!session || phase_of(number) != P::awaiting_memory) continue;
    const bool may = why_held(*session).empty() && (!may_return_ || may_return_(*session));
    if (may && parts_.memory.take_memory(*session)) happen(number, C::room);
    else returns_.push_back(number);
  }
  poll_returns_later();
}

void Suspensions::poll_returns_later() {
  if (returns_.empty() || std::exchange(polling_, true)) return;
  return_timer_.expires_after(std::chrono::milliseconds(kReturnPollMs));
  return_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (!error) poll_returns();
  }));
}

// --- moves ---------------------------------------------------------------------------------------------------------

void Suspensions::next_move() {
  while (!under_way_ && !moves_.empty() && parts_.mover.why_no_moves().empty()) {
    const SessionId number = moves_.front();
    moves_.pop_front();
    const SuspensionPhase phase = phase_of(number);
    const bool in = phase == P::moving_in;
    if (!in && phase != P::moving_out && phase != P::recalled) continue;
    OwnedDescriptor process = parts_.control.worker_process(number);
    if (!process) {
      // Its worker has ended, whose report follows; or the broker has no descriptor left.
      happen(number, in ? C::no_room : C::refused, "its process cannot be reached");
      continue;
    }
    const SessionRecord& session = *parts_.registry.find(number);
    under_way_ = Order{++last_order_, number};
    ipc::Move order{last_order_, uint32_t(session.worker_pid), in, std::move(process)};
    if (parts_.mover.send(number, std::move(order))) return;
    under_way_.reset();
    moves_.push_front(number);
    return;  // it goes on with Events::ready
  }
}

void Suspensions::moved(const ipc::Moved& result) {
  if (!under_way_ || result.order != under_way_->number) return;
  const SessionId number = under_way_->session;
  under_way_.reset();
  switch (result.result) {
    case ipc::MoveResult::done: happen(number, C::moved); break;
    case ipc::MoveResult::refused: happen(number, C::refused, result.why); break;
    case ipc::MoveResult::no_room: happen(number, C::no_room, result.why); break;
    case ipc::MoveResult::lost: happen(number, C::failed, result.why); break;
    case ipc::MoveResult::gone: break;  // the end of its process is reported, too
  }
  next_move();
}

SuspenderProcess::Events Suspensions::mover_events() {
  return {.ready = [this] { next_move(); },
          .moved = [this](const ipc::Moved& result) { moved(result); },
          .gone =
              [this] {
                if (under_way_) moves_.push_front(under_way_->session);
                under_way_.reset();
              }};
}

// --- sessions ------------------------------------------------------------------------------------------------------

bool Suspensions::on_message(const SessionRecord& session, ipc::Message& message) {
  if (auto* quiet = std::get_if<ipc::Quiet>(&message)) {
    happen(session.number, quiet->why.empty() ? C::quiet : C::not_quiet, quiet->why);
    return true;
  }
  if (std::holds_alternative<ipc::ReturnWanted>(message)) {
    want(session.number);
    notify_later(session.number);
    return true;
  }
  return false;
}

std::optional<SessionReturn> Suspensions::last_return(SessionId session) const {
  auto found = returned_.find(session);
  return found == returned_.end() ? std::nullopt : std::optional(found->second);
}

void Suspensions::notify_later(SessionId number) {
  auto found = sessions_.find(number);
  if (found == sessions_.end()) return;
  boost::asio::steady_timer& timer = found->second->notice_timer;
  timer.expires_after(std::chrono::milliseconds(kReturnNoticeMs));
  timer.async_wait(lifetime_.guard([this, number](boost::system::error_code error) {
    if (!error) notify(number);
  }));
}

void Suspensions::notify(SessionId number) {
  const SessionRecord* session = parts_.registry.find(number);
  auto found = sessions_.find(number);
  if (!session || found == sessions_.end()) return;
  const P phase = found->second->phase;
  if (phase != P::recalled && phase != P::awaiting_memory && phase != P::moving_in) return;
  const std::string size = size_text(found->second->host_bytes), held = why_held(*session);
  std::string text = fmt::format("resuming: {}", size);
  if (phase == P::awaiting_memory)
    text = held.empty() ? fmt::format("resuming: {}, others have the GPU", size)
                        : fmt::format("resuming: {}, {}", size, held);
  // A session that is ending takes no message.
  parts_.control.send(number, ipc::Warn{std::move(text)});
}

void Suspensions::ended(const SessionRecord& session) {
  returned_.erase(session.number);
  answer(session.number, &Suspended::suspends, tl::unexpected(std::string("it has ended")));
  answer(session.number, &Suspended::resumes, tl::unexpected(std::string("it has ended")));
  auto gone = sessions_.extract(session.number);
  if (gone) count_host(*gone.mapped(), 0);
}

void Suspensions::note(const SessionRecord& session, KeptSession& kept) const {
  kept.suspension = uint8_t(phase_of(session.number));
  if (const auto last = last_return(session.number)) {
    kept.returned_ns = last->at.count();
    kept.return_took_ns = last->took.count();
  }
}

// A worker that was only asked to rest repeats its answer, and is let go on.
tl::expected<void, std::string> Suspensions::adopt(const SessionRecord& session, const KeptSession& kept, KeptEntry&) {
  const SuspensionPhase phase = kept.suspension < kSuspensionPhases ? SuspensionPhase(kept.suspension) : P::running;
  if (phase == P::lost) return tl::unexpected(std::string("its device memory is lost"));
  if (kept.returned_ns > 0)
    returned_[session.number] = {std::min(scheduler::Time(kept.returned_ns), parts_.now()),
                                 scheduler::Duration(std::max<int64_t>(kept.return_took_ns, 0))};
  if (phase == P::running || phase == P::quiescing) return {};
  parts_.registry.restore_suspension(session.number, state_of(phase));
  auto& suspended = sessions_[session.number] = std::make_unique<Suspended>(parts_.io);
  suspended->phase = phase;
  suspended->tenant = session.tenant_id;
  suspended->requester.name = "an earlier server";
  suspended->room_at = parts_.now();
  count_host(*suspended, parts_.memory.releasable_bytes(session));
  if (phase == P::awaiting_memory) await_memory(session.number);
  else if (phase != P::suspended) moves_.push_back(session.number);
  return {};
}

}  // namespace gpuwire::server
