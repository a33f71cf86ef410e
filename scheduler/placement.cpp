#include "scheduler/placement.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "scheduler/placement_state.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr unsigned kPollsMax = 8;  // passes over the queue, if memory is taken by others at the same moment

std::string gpus_text(size_t count) { return count == 1 ? "1 GPU" : fmt::format("{} GPUs", count); }
std::string bytes_text(uint64_t bytes) {
  constexpr uint64_t kMiB = uint64_t(1) << 20, kGiB = uint64_t(1) << 30;
  if (bytes < kMiB) return fmt::format("{} bytes", bytes);
  return bytes < kGiB ? fmt::format("{} MiB", bytes / kMiB) : fmt::format("{:.4g} GiB", double(bytes) / double(kGiB));
}

}  // namespace

std::vector<DeviceIndex> Placement::State::allowed(const PlacementRequest& request) const {
  std::vector<DeviceIndex> found;
  for (DeviceIndex device = 0; device < devices.size(); ++device) {
    if (request.allowed.empty() || std::count(request.allowed.begin(), request.allowed.end(), device))
      found.push_back(device);
  }
  return found;
}

std::vector<DeviceIndex> Placement::State::possible(const PlacementRequest& request) const {
  std::vector<DeviceIndex> found = allowed(request);
  std::erase_if(found, [&](DeviceIndex device) { return most(request, device) < request.memory_bytes; });
  return found;
}

std::vector<DeviceIndex> Placement::State::usable(const PlacementRequest& request) const {
  std::vector<DeviceIndex> found = possible(request);
  std::erase_if(found, [&](DeviceIndex device) { return is_drained(device); });
  return found;
}

std::string Placement::State::why_drained(const PlacementRequest& request) const {
  std::vector<DeviceIndex> found = possible(request);
  std::erase_if(found, [&](DeviceIndex device) { return !is_drained(device); });
  if (found.size() == 1) return fmt::format("GPU {} is drained", found.front());
  return fmt::format("the GPUs {} are drained", fmt::join(found, ", "));
}

std::string Placement::State::never(const PlacementRequest& request) const {
  size_t may = allowed(request).size();
  if (may < request.gpus)
    return fmt::format("{} asked for, and this server has {} for the tenant", gpus_text(request.gpus), gpus_text(may));
  size_t can = possible(request).size();
  if (can >= request.gpus) return {};
  uint64_t largest = 0;
  for (DeviceIndex device : allowed(request)) largest = std::max(largest, most(request, device));
  std::string of_each = request.gpus == 1 ? "" : fmt::format(" on each of {}", gpus_text(request.gpus));
  return fmt::format("{}{} asked for, and the {} can never have that much: {} at most on a GPU{}",
                     bytes_text(request.memory_bytes), of_each, largest == user_most(request) ? "user" : "tenant",
                     bytes_text(largest), can ? fmt::format(", and enough on {} only", gpus_text(can)) : "");
}

size_t Placement::State::sessions_on(DeviceIndex device, const Gone& gone) const {
  return size_t(std::count_if(running.begin(), running.end(), [&](const auto& one) {
    return std::count(one.second.devices.begin(), one.second.devices.end(), device) != 0 && !gone.contains(one.second);
  }));
}

size_t Placement::State::sessions_of(TenantId tenant) const {
  return size_t(
      std::count_if(running.begin(), running.end(), [&](const auto& one) { return one.second.tenant == tenant; }));
}

size_t Placement::State::sessions_of(TenantId tenant, const std::string& user) const {
  return size_t(std::count_if(running.begin(), running.end(),
                              [&](const auto& one) { return one.second.tenant == tenant && one.second.user == user; }));
}

std::map<TenantId, size_t> Placement::State::sessions_by_tenant() const {
  std::map<TenantId, size_t> found;
  for (const auto& [session, one] : running) ++found[one.tenant];
  return found;
}

// Returns the reason with the whole reserved and guaranteed memory, used or not: values that are constant while
// programs run.
std::string Placement::State::why_no_memory(const PlacementRequest& request) const {
  const std::vector<DeviceIndex> among = usable(request);
  const auto within =
      std::count_if(among.begin(), among.end(), [&](DeviceIndex device) { return user_has_room(request, device); });
  if (size_t(within) < request.gpus)
    return fmt::format("the user has reached the limit of memory ({} on a GPU)", bytes_text(user_most(request)));
  uint64_t most = 0, reserved = 0, guaranteed = 0;
  for (DeviceIndex device : among) {
    most = std::max(most, devices[device].bytes);
    if (memory.reserved) reserved += memory.reserved(device);
    if (memory.guaranteed_to_others) guaranteed += memory.guaranteed_to_others(request.tenant, device);
  }
  std::string why = fmt::format("{} of {} are not free on {} now", bytes_text(request.memory_bytes), bytes_text(most),
                                gpus_text(request.gpus));
  if (guaranteed) why += fmt::format("; {} are guaranteed to other tenants", bytes_text(guaranteed));
  if (reserved) why += fmt::format("; {} are reserved by programs that run", bytes_text(reserved));
  return why;
}

std::vector<DeviceIndex> Placement::State::least_loaded(std::vector<DeviceIndex> candidates,
                                                        const PlacementRequest& request) const {
  auto load = [&](DeviceIndex device) {
    uint64_t free = memory.free_now ? memory.free_now(request.tenant, device) : devices[device].bytes;
    return std::tuple(sessions_on(device), UINT64_MAX - free, device);
  };
  std::sort(candidates.begin(), candidates.end(), [&](DeviceIndex a, DeviceIndex b) { return load(a) < load(b); });
  candidates.resize(request.gpus);
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

std::variant<Placed, Placement::State::Obstacle> Placement::State::place(const Waiting& waiting,
                                                                         const Needs& owed) const {
  const PlacementRequest& request = waiting.request;
  if (places)
    if (std::string why = places(request.tenant, sessions_by_tenant()); !why.empty())
      return Obstacle{.why = why, .own = true, .awaits_end = true};
  if (request.tenant_sessions_max && sessions_of(request.tenant) >= request.tenant_sessions_max)
    return Obstacle{fmt::format("the tenant has reached its limit of sessions ({})", request.tenant_sessions_max),
                    true};
  if (request.user_sessions_max && sessions_of(request.tenant, request.user) >= request.user_sessions_max)
    return Obstacle{fmt::format("the user has reached the limit of sessions ({})", request.user_sessions_max), true};
  if (why_held)
    if (std::string why = why_held(request.session); !why.empty()) return Obstacle{why, true};
  const std::vector<DeviceIndex> among = usable(request);
  if (among.size() < request.gpus) return Obstacle{.why = why_drained(request), .own = true};
  std::vector<DeviceIndex> candidates;
  size_t memory = 0, sessions = 0, both = 0, memory_not_owed = 0, sessions_not_owed = 0;
  for (const DeviceIndex device : among) {
    const bool has = has_memory(request, device), room = has_session(device);
    const uint8_t blocked = owed[device] & takes(request, device);
    memory += has;
    sessions += room;
    both += has && room;
    memory_not_owed += has && !(blocked & kMemory);
    sessions_not_owed += room && !(blocked & kSession);
    if (has && room && !blocked) candidates.push_back(device);
  }
  if (candidates.size() >= request.gpus) return Placed{least_loaded(std::move(candidates), request)};
  Obstacle obstacle;
  if (memory < request.gpus) obstacle.why = why_no_memory(request);
  else if (both < request.gpus) obstacle.why = "the GPUs have reached their limit of sessions";
  else obstacle.why = "other programs are ahead", obstacle.held_back = true;
  obstacle.own = both < request.gpus && waits_for_own(request);
  obstacle.awaits_end = !beyond_own_limit(request);
  if (memory_not_owed < request.gpus) obstacle.lacks |= kMemory;
  if (sessions_not_owed < request.gpus) obstacle.lacks |= kSession;
  if (obstacle.lacks == 0) obstacle.lacks = kEverything;
  // No other session may begin there while only sessions that began after this request's arrival block it.
  if (memory < request.gpus && fits(request, {.tenant = {}, .after = waiting.newer_from})) obstacle.lacks |= kAnything;
  return obstacle;
}

template <class Visit>
void Placement::State::walk(Visit&& visit) const {
  Needs owed(devices.size());    // to requests in front that may not be overtaken (any more)
  Needs wanted(devices.size());  // by requests in front of the same class that may be overtaken
  std::vector<bool> lent(devices.size());
  for (size_t i = 0; i < queue.size(); ++i) {
    if (i > 0 && queue[i].request.service_class != queue[i - 1].request.service_class) {
      for (DeviceIndex device = 0; device < devices.size(); ++device) owed[device] |= wanted[device];
    }
    auto what = place(queue[i], owed);
    if (visit(i, what, std::as_const(owed))) return;
    auto* obstacle = std::get_if<Obstacle>(&what);
    if (obstacle && obstacle->own) continue;
    // Devices that one gang lends are not kept for the next gang instead.
    const bool gang = queue[i].request.gpus > 1, lends_too = gang && shares_a_device(queue[i].request, lent);
    Needs& of = obstacle && (lends_too || may_be_overtaken(queue[i])) ? wanted : owed;
    for (const DeviceIndex device : usable(queue[i].request)) {
      of[device] |= obstacle ? obstacle->lacks : kEverything;
      lent[device] = lent[device] || (obstacle && gang && lends(queue[i]));
    }
  }
}

bool Placement::State::shares_a_device(const PlacementRequest& request, const std::vector<bool>& of) const {
  const std::vector<DeviceIndex> mine = possible(request);
  return std::any_of(mine.begin(), mine.end(), [&](DeviceIndex device) { return of[device]; });
}

std::vector<bool> Placement::State::who_holds_back() const {
  std::vector<bool> holds_back(queue.size());
  std::vector<size_t> keepers;
  std::vector<bool> lent(devices.size());
  walk([&](size_t i, auto& what, const auto&) {
    const auto* obstacle = std::get_if<Obstacle>(&what);
    if (!obstacle || obstacle->own) return false;
    const PlacementRequest& request = queue[i].request;
    std::vector<bool> could(devices.size());
    for (const DeviceIndex device : possible(request))
      could[device] = obstacle->held_back && has_memory(request, device) && has_session(device);
    for (const size_t keeper : keepers)
      holds_back[keeper] = holds_back[keeper] || shares_a_device(queue[keeper].request, could);
    if (request.gpus > 1 && !may_be_overtaken(queue[i]) && !shares_a_device(request, lent)) keepers.push_back(i);
    if (request.gpus > 1 && lends(queue[i])) {
      for (const DeviceIndex device : possible(request)) lent[device] = true;
    }
    return false;
  });
  return holds_back;
}

std::optional<std::pair<SessionId, Placed>> Placement::State::start_one(const std::function<bool(SessionId)>& may,
                                                                        bool waited) {
  for (unsigned poll = 0; poll < kPollsMax; ++poll) {
    late = false;
    if (auto started = find_one(may, waited); started || !late) return started;
  }
  return std::nullopt;
}

std::optional<std::pair<SessionId, Placed>> Placement::State::find_one(const std::function<bool(SessionId)>& may,
                                                                       bool waited) {
  struct Passed {
    size_t index;
    uint8_t lacks;
  };
  std::vector<Passed> passed;
  std::optional<size_t> found;
  Placed placed;
  walk([&](size_t i, auto& what, const auto&) {
    const PlacementRequest& request = queue[i].request;
    const bool wants_memory = request.memory_bytes && memory.reserve;
    if (std::holds_alternative<Placed>(what) && may(request.session) && wants_memory &&
        !memory.reserve(request, std::get<Placed>(what).devices))
      what = Obstacle{.why = why_no_memory(request), .own = false, .lacks = kEverything}, late = true;
    auto* obstacle = std::get_if<Obstacle>(&what);
    if (obstacle && !obstacle->own) passed.push_back({i, obstacle->lacks});
    if (obstacle || !may(request.session)) return false;
    placed = std::move(std::get<Placed>(what));
    found = i;
    return true;
  });
  if (!found) return std::nullopt;
  const PlacementRequest request = queue[*found].request;
  for (const Passed& one : passed) {
    const std::vector<DeviceIndex> waits_for = possible(queue[one.index].request);
    const bool overtakes = std::any_of(waits_for.begin(), waits_for.end(), [&](DeviceIndex device) {
      return std::count(placed.devices.begin(), placed.devices.end(), device) && (takes(request, device) & one.lacks);
    });
    // A gang may be overtaken more often; the count stops at the bound.
    unsigned& overtaken = queue[one.index].overtaken;
    overtaken = std::min(overtaken + overtakes, kOvertakenMax);
  }
  if (waited) count_turn(queue[*found]);
  queue.erase(queue.begin() + ptrdiff_t(*found));
  arrange();
  running[request.session] = {request.tenant, request.memory_bytes, placed.devices, ++arrivals, request.user};
  return std::pair(request.session, std::move(placed));
}

Placement::Placement(std::vector<Device> devices) : state_(std::make_unique<State>()) {
  state_->devices = std::move(devices);
}
Placement::Placement(const State& state) : state_(std::make_unique<State>(state)) {}
Placement::~Placement() = default;

void Placement::set_memory(Memory memory) { state_->memory = std::move(memory); }

void Placement::set_places(Places places) { state_->places = std::move(places); }

void Placement::set_held(Held held) { state_->why_held = std::move(held); }

void Placement::set_drained(Drained drained) { state_->drained = std::move(drained); }

void Placement::set_sessions_max(unsigned sessions_max) {
  for (Device& device : state_->devices) device.sessions_max = sessions_max;
}

void Placement::pass_time(Time now) {
  const Duration passed = std::max(now - state_->now, Duration::zero());
  const bool begun = state_->now != Time{};
  state_->now = std::max(now, state_->now);
  if (!begun || passed == Duration::zero() || state_->queue.size() < 2) return;
  const std::vector<bool> holds_back = state_->who_holds_back();
  for (size_t i = 0; i < state_->queue.size(); ++i) {
    State::Waiting& waiting = state_->queue[i];
    if (!holds_back[i]) continue;
    waiting.kept += passed;
    if (waiting.kept < waiting.kept_max) continue;
    // The sessions that block the gang have run for longer than its GPUs were kept: from now on they count as older
    // than the gang.
    waiting.newer_from = state_->arrivals;
    waiting.lent_until = state_->now + waiting.kept;
    waiting.kept_max = std::max(waiting.kept_max, std::min(waiting.kept_max, Duration::max() / 2) * 2);
    waiting.kept = Duration::zero();
  }
}

PlacementAnswer Placement::ask(const PlacementRequest& request) {
  if (std::string reason = state_->never(request); !reason.empty()) return NeverFits{std::move(reason)};
  state_->enter(request, state_->rounds[request.service_class].current);
  if (auto started = state_->start_one([&](SessionId session) { return session == request.session; }, false))
    return std::move(started->second);
  for (auto& [session, queued] : waiting()) {
    if (session == request.session) return queued;
  }
  return NeverFits{"a session of this number waits already"};
}

PlacementAnswer Placement::preview(const PlacementRequest& request) const {
  Placement copy(*state_);
  copy.state_->memory.reserve = nullptr;
  return copy.ask(request);
}

void Placement::adopt(SessionId session, TenantId tenant, uint64_t memory_bytes, std::vector<DeviceIndex> devices,
                      std::string user) {
  std::sort(devices.begin(), devices.end());
  state_->running[session] = {tenant, memory_bytes, std::move(devices), ++state_->arrivals, std::move(user)};
}

std::optional<NeverFits> Placement::wait(const PlacementRequest& request, uint64_t round) {
  if (std::string reason = state_->never(request); !reason.empty()) return NeverFits{std::move(reason)};
  // The current round is the lowest one of the waiting sessions.
  auto [of, first] = state_->rounds.try_emplace(request.service_class);
  of->second.current = first ? round : std::min(of->second.current, round);
  state_->enter(request, round);
  return std::nullopt;
}

std::vector<std::pair<SessionId, Placed>> Placement::start_waiting(const std::function<bool(SessionId)>& may) {
  std::vector<std::pair<SessionId, Placed>> started;
  while (auto one = state_->start_one(may, true)) started.push_back(std::move(*one));
  return started;
}

std::vector<std::pair<SessionId, Queued>> Placement::waiting() const {
  std::vector<std::pair<SessionId, Queued>> all;
  state_->walk([&](size_t i, auto& what, const auto&) {
    auto* obstacle = std::get_if<State::Obstacle>(&what);
    all.emplace_back(state_->queue[i].request.session,
                     Queued{i + 1, state_->queue.size(), obstacle ? obstacle->why : "it is about to start",
                            state_->queue[i].round, obstacle && obstacle->awaits_end});
    return false;
  });
  return all;
}

std::vector<MemoryWait> Placement::waiting_for_memory() const {
  std::vector<MemoryWait> all;
  state_->walk([&](size_t i, auto& what, const State::Needs& owed) {
    const auto* obstacle = std::get_if<State::Obstacle>(&what);
    const PlacementRequest& request = state_->queue[i].request;
    if (!obstacle || obstacle->lacks == 0 || request.memory_bytes == 0) return false;
    MemoryWait wait{
        .session = request.session, .gpus = request.gpus, .memory_bytes = request.memory_bytes, .devices = {}};
    size_t with_memory = 0;
    for (const DeviceIndex device : state_->possible(request)) {
      if (!state_->has_session(device) || (owed[device] & state_->takes(request, device))) continue;
      wait.devices.push_back(device);
      with_memory += state_->has_memory(request, device);
    }
    if (with_memory < request.gpus && wait.devices.size() >= request.gpus) all.push_back(std::move(wait));
    return false;
  });
  return all;
}

std::optional<NeverFits> Placement::revise(const PlacementRequest& request) {
  auto& queue = state_->queue;
  auto at =
      std::find_if(queue.begin(), queue.end(), [&](const auto& one) { return one.request.session == request.session; });
  if (at == queue.end()) return std::nullopt;
  if (std::string reason = state_->never(request); !reason.empty()) {
    queue.erase(at);
    state_->arrange();
    return NeverFits{std::move(reason)};
  }
  state_->revise(*at, request);
  return std::nullopt;
}

void Placement::cancel(SessionId waiting) {
  std::erase_if(state_->queue, [&](const auto& one) { return one.request.session == waiting; });
  state_->arrange();
}

void Placement::leave(SessionId running) { state_->running.erase(running); }

std::string Placement::check() const {
  const State& state = *state_;
  for (const auto& [session, one] : state.running) {
    if (!std::is_sorted(one.devices.begin(), one.devices.end()) ||
        std::adjacent_find(one.devices.begin(), one.devices.end()) != one.devices.end())
      return fmt::format("session {} has a device twice", uint64_t(session));
    if (one.devices.empty() || one.devices.back() >= state.devices.size())
      return fmt::format("session {} has a device that there is not", uint64_t(session));
  }
  for (DeviceIndex device = 0; device < state.devices.size(); ++device) {
    if (state.promised(device, nullptr) > state.devices[device].bytes)
      return fmt::format("device {} is promised beyond its memory", device);
  }
  for (size_t i = 1; i < state.queue.size(); ++i) {
    if (!state.before(state.queue[i - 1], state.queue[i]))
      return fmt::format("place {} of the queue is not in order", i + 1);
  }
  for (const auto& one : state.queue) {
    if (state.running.contains(one.request.session))
      return fmt::format("session {} waits and runs", uint64_t(one.request.session));
    if (one.overtaken > kOvertakenMax)
      return fmt::format("session {} was overtaken {} times", uint64_t(one.request.session), one.overtaken);
  }
  return {};
}

}  // namespace gpuwire::scheduler
