// Placement against what the queue promises: scenarios of arrivals, ends, memory that comes and goes, and changed
// settings, each from a seed.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "test/scheduler/placement_fixture.hpp"
#include "test/support/long_form.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr unsigned kScenarios = 3'000, kScenariosLong = 100'000, kSteps = 60;

struct Seen {
  PlacementRequest request;
  uint64_t arrival = 0;
  uint64_t round_least = 0;
  unsigned overtaken = 0;
};

struct Running {
  PlacementRequest request;
  std::vector<DeviceIndex> devices;
  uint64_t begun = 0;  // in the order of the arrivals
};
bool on(const Running& one, DeviceIndex device) {
  return std::count(one.devices.begin(), one.devices.end(), device) != 0;
}

class Scenario {
 public:
  explicit Scenario(uint64_t seed)
      : random_(seed), devices_(pick(1, 6)), sessions_max_(pick(0, 3)), placement_(make_devices()) {
    used_.assign(devices_, 0);
    placement_.set_memory(
        {.free_now = [this](TenantId, DeviceIndex device) { return free_now(device); },
         .most = [](TenantId, DeviceIndex) { return kDevice; },
         .held = {},
         .held_by = {},
         .guaranteed = {},
         .reserved = [this](DeviceIndex device) { return used_[device]; },
         .guaranteed_to_others = {},
         .reserve = [this](const PlacementRequest& request,
                           const std::vector<DeviceIndex>& devices) { return reserve(request, devices); }});
    unsigned tenants = pick(1, 4);
    for (unsigned i = 0; i < tenants; ++i) tenant_max_.push_back(pick(0, 4));
  }

  void run() {
    for (unsigned step = 0; step < kSteps; ++step) {
      act();
      hold();
    }
    end_all();
  }

 private:
  static constexpr uint64_t kDevice = 16 * kGiB;
  unsigned pick(unsigned least, unsigned most) { return std::uniform_int_distribution<unsigned>(least, most)(random_); }
  std::vector<Placement::Device> make_devices() const {
    return std::vector<Placement::Device>(devices_, {kDevice, sessions_max_});
  }

  void act() {
    used_seen_ = {used_};
    switch (pick(0, 9)) {
      case 0: take_memory(); break;
      case 1: cancel(); break;
      case 2: revise(); break;
      case 3:
      case 4:
      case 5: leave(); break;
      default: arrive();
    }
  }

  PlacementRequest some_request() {
    PlacementRequest request{.session = SessionId(++sessions_),
                             .tenant = TenantId(pick(0, unsigned(tenant_max_.size()) - 1)),
                             .service_class = ServiceClass(pick(0, 3))};
    request.gpus = pick(1, 4) == 1 ? pick(1, devices_) : 1;
    request.memory_bytes = pick(0, 2) ? pick(1, 17) * kGiB : 0;
    if (pick(0, 3) == 0) {
      for (DeviceIndex device = 0; device < devices_; ++device) {
        if (pick(0, 1)) request.allowed.push_back(device);
      }
    }
    request.tenant_sessions_max = tenant_max_[uint32_t(request.tenant)];
    return request;
  }

  bool could_ever(const PlacementRequest& request) const {
    unsigned may = request.allowed.empty() ? devices_ : unsigned(request.allowed.size());
    return may >= request.gpus && request.memory_bytes <= kDevice;
  }
  bool may_use(const PlacementRequest& request, DeviceIndex device) const {
    return request.allowed.empty() || std::count(request.allowed.begin(), request.allowed.end(), device);
  }

  void arrive() {
    PlacementRequest request = some_request();
    const PlacementAnswer told_before = placement_.preview(request);
    CHECK(placement_.check().empty());
    const size_t looks = used_seen_.size();
    PlacementAnswer answer = placement_.ask(request);
    // Unless memory was taken in between.
    if (used_seen_.size() == looks) same_answer(told_before, answer);
    CHECK(std::holds_alternative<NeverFits>(answer) == !could_ever(request));
    if (auto* never = std::get_if<NeverFits>(&answer)) {
      CHECK_FALSE(never->reason.empty());
      return;
    }
    waiting_[request.session] = {request, ++arrivals_, rounds_[request.service_class].current};
    if (auto* placed = std::get_if<Placed>(&answer)) begin(request.session, *placed, false);
    forget_rounds();
  }

  static void same_answer(const PlacementAnswer& a, const PlacementAnswer& b) {
    REQUIRE(a.index() == b.index());
    if (auto* placed = std::get_if<Placed>(&a)) CHECK(placed->devices == std::get<Placed>(b).devices);
    if (auto* queued = std::get_if<Queued>(&a)) {
      CHECK(queued->place == std::get<Queued>(b).place);
      CHECK(queued->waiting == std::get<Queued>(b).waiting);
      CHECK(queued->why == std::get<Queued>(b).why);
    }
  }

  // Now and then somebody has been quicker, and all of a device is gone.
  bool reserve(const PlacementRequest& request, const std::vector<DeviceIndex>& devices) {
    CHECK(request.memory_bytes > 0);
    for (DeviceIndex device : devices) CHECK(free_now(device) >= request.memory_bytes);
    bool late = !ending_ && pick(0, 7) == 0;
    if (late) used_[devices.front()] = unreserved(devices.front()), used_seen_.push_back(used_);
    else CHECK(reservations_.try_emplace(request.session, Running{request, devices}).second);
    return !late;
  }

  using Without = std::function<bool(const Running&)>;
  // What sessions that have begun have not reserved, `without` some of them.
  uint64_t free(DeviceIndex device, const Without& without) const {
    uint64_t taken = used_[device];
    for (const auto& [session, one] : running_) {
      if (on(one, device) && !(without && without(one))) taken += one.request.memory_bytes;
    }
    return kDevice - std::min(kDevice, taken);
  }
  // Those that are about to begin have theirs, too.
  uint64_t unreserved(DeviceIndex device) const {
    uint64_t bytes = kDevice;
    for (const auto& [session, one] : reservations_) bytes -= on(one, device) ? one.request.memory_bytes : 0;
    return bytes;
  }
  uint64_t free_now(DeviceIndex device) const { return unreserved(device) - used_[device]; }
  // On how many devices there is a place for its session, and on how many of these its memory, too.
  std::pair<size_t, size_t> room(const PlacementRequest& request, const Without& without) const {
    size_t places = 0, both = 0;
    for (DeviceIndex device = 0; device < devices_; ++device) {
      if (!may_use(request, device)) continue;
      const auto sessions = std::count_if(running_.begin(), running_.end(), [&](const auto& one) {
        return on(one.second, device) && !(without && without(one.second));
      });
      const bool place = !sessions_max_ || size_t(sessions) < sessions_max_;
      places += place;
      both += place && free(device, without) >= request.memory_bytes;
    }
    return {places, both};
  }
  // It would fit if its tenant's other sessions were not there, or does not fit while only they are.
  bool waits_for_own(const PlacementRequest& request) const {
    const auto own = [&](const Running& one) { return one.request.tenant == request.tenant; };
    if (room(request, {}).second >= request.gpus) return false;
    unsigned within_limit = 0;
    for (DeviceIndex device = 0; device < devices_; ++device) {
      uint64_t has = 0;
      for (const auto& [session, one] : running_) has += own(one) && on(one, device) ? one.request.memory_bytes : 0;
      within_limit += may_use(request, device) && has + request.memory_bytes <= kDevice;
    }
    return room(request, own).second >= request.gpus || within_limit < request.gpus;
  }
  // Only memory, which those have who were there before it.
  bool waits_for_older_memory(const Seen& seen) const {
    const auto newer = [&](const Running& one) { return one.begun > seen.arrival; };
    return seen.request.memory_bytes && room(seen.request, {}).first >= seen.request.gpus &&
           room(seen.request, newer).second < seen.request.gpus;
  }
  // A gang, in whose way are sessions that were there before it.
  bool is_kept_by_older(const Seen& seen) const {
    const auto newer = [&](const Running& one) { return one.begun > seen.arrival; };
    return seen.request.gpus > 1 && room(seen.request, newer).second < seen.request.gpus;
  }
  bool memory_is_wanted_in_front(const Seen& seen) const {
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& other) {
      return other.second.request.memory_bytes && in_front(other.second, seen);
    });
  }
  // May `started` begin before it as often as it likes? By what was free when that was decided: memory has been taken
  // since.
  bool excused(const Seen& one, const PlacementRequest& started) {
    return std::any_of(used_seen_.begin(), used_seen_.end(), [&](const std::vector<uint64_t>& used) {
      const std::vector<uint64_t> now = std::exchange(used_, used);
      const bool reserves_nothing = started.memory_bytes == 0 && one.request.memory_bytes != 0;
      const bool may = waits_for_own(one.request) || (one.overtaken >= kOvertakenMax && is_kept_by_older(one)) ||
                       (reserves_nothing && (waits_for_older_memory(one) || memory_is_wanted_in_front(one)));
      used_ = now;
      return may;
    });
  }
  auto order(const Seen& one) const { return std::tuple(one.request.service_class, round_of(one), one.arrival); }
  bool in_front(const Seen& a, const Seen& b) const { return order(a) < order(b); }
  // Each one of a tenant is a round behind the one before it.
  uint64_t round_of(const Seen& one) const {
    uint64_t before = 0;
    if (auto rounds = rounds_.find(one.request.service_class); rounds != rounds_.end()) {
      if (auto served = rounds->second.served.find(one.request.tenant); served != rounds->second.served.end())
        before = served->second + 1;
    }
    std::vector<const Seen*> own;
    for (const auto& [session, other] : waiting_) {
      if (other.request.tenant == one.request.tenant && other.request.service_class == one.request.service_class &&
          other.arrival <= one.arrival)
        own.push_back(&other);
    }
    std::sort(own.begin(), own.end(), [](const Seen* a, const Seen* b) { return a->arrival < b->arrival; });
    for (const Seen* other : own) before = std::max(other->round_least, before) + 1;
    return before - 1;
  }
  void count_turn(const Seen& began) {
    uint64_t first = UINT64_MAX;
    for (const auto& [session, other] : waiting_) {
      if (other.request.tenant == began.request.tenant && other.request.service_class == began.request.service_class)
        first = std::min(first, round_of(other));
    }
    Rounds& of = rounds_[began.request.service_class];
    of.current = std::max(of.current, first);
    of.served[began.request.tenant] = of.current;
  }
  void forget_rounds() {
    std::erase_if(rounds_, [&](const auto& one) {
      return std::none_of(waiting_.begin(), waiting_.end(),
                          [&](const auto& other) { return other.second.request.service_class == one.first; });
    });
  }

  // What the one that starts must not do to those in front of it.
  void begin(SessionId session, const Placed& placed, bool waited) {
    Seen seen = waiting_.at(session);
    const PlacementRequest& request = seen.request;
    CHECK(placed.devices.size() == request.gpus);
    CHECK(std::is_sorted(placed.devices.begin(), placed.devices.end()));
    CHECK(std::adjacent_find(placed.devices.begin(), placed.devices.end()) == placed.devices.end());
    for (DeviceIndex device : placed.devices) {
      CHECK(may_use(request, device));
      if (sessions_max_) CHECK(sessions_on(device) < sessions_max_);
    }
    if (request.tenant_sessions_max) CHECK(sessions_of(request.tenant) < request.tenant_sessions_max);
    CHECK(reservations_.contains(session) == (request.memory_bytes > 0));
    for (auto& [other, one] : waiting_) {
      bool wants = std::any_of(placed.devices.begin(), placed.devices.end(),
                               [&](DeviceIndex device) { return may_use(one.request, device); });
      bool own_limit =
          one.request.tenant_sessions_max && sessions_of(one.request.tenant) >= one.request.tenant_sessions_max;
      if (!in_front(one, seen) || !wants || own_limit || excused(one, request)) continue;
      CHECK(one.request.service_class == request.service_class);
      CHECK(++one.overtaken <= kOvertakenMax);
    }
    if (waited) count_turn(seen);
    waiting_.erase(session);
    running_[session] = {request, placed.devices, ++arrivals_};
    forget_rounds();
  }

  size_t sessions_on(DeviceIndex device) const {
    return size_t(std::count_if(running_.begin(), running_.end(), [&](auto& one) { return on(one.second, device); }));
  }
  size_t sessions_of(TenantId tenant) const {
    return size_t(std::count_if(running_.begin(), running_.end(),
                                [&](auto& one) { return one.second.request.tenant == tenant; }));
  }

  void leave() {
    if (running_.empty()) return;
    auto gone = std::next(running_.begin(), pick(0, unsigned(running_.size()) - 1));
    placement_.leave(gone->first);
    reservations_.erase(gone->first);
    running_.erase(gone);
    start();
  }
  void cancel() {
    if (waiting_.empty()) return;
    auto gone = std::next(waiting_.begin(), pick(0, unsigned(waiting_.size()) - 1));
    placement_.cancel(gone->first);
    waiting_.erase(gone);
    forget_rounds();
    start();
  }
  void take_memory() {
    const DeviceIndex device = pick(0, devices_ - 1);
    used_[device] = std::min(pick(0, 16) * kGiB, unreserved(device));
    used_seen_ = {used_};
    start();
  }
  void revise() {
    if (waiting_.empty()) return;
    auto one = std::next(waiting_.begin(), pick(0, unsigned(waiting_.size()) - 1));
    const auto service_class = ServiceClass(pick(0, 3));
    if (one->second.request.service_class != service_class) one->second.round_least = rounds_[service_class].current;
    one->second.request.service_class = service_class;
    one->second.request.memory_bytes = pick(0, 17) * kGiB;
    bool never = placement_.revise(one->second.request).has_value();
    CHECK(never == !could_ever(one->second.request));
    if (never) waiting_.erase(one);
    forget_rounds();
    start();
  }
  void start() {
    for (auto& [session, placed] : placement_.start_waiting()) begin(session, placed, true);
    CHECK(placement_.start_waiting().empty());
  }

  void hold() {
    CHECK(placement_.check() == "");
    auto queue = placement_.waiting();
    REQUIRE(queue.size() == waiting_.size());
    for (size_t i = 0; i < queue.size(); ++i) {
      CHECK(queue[i].second.place == i + 1);
      CHECK(queue[i].second.waiting == queue.size());
      CHECK_FALSE(queue[i].second.why.empty());
      REQUIRE(waiting_.contains(queue[i].first));
      if (i > 0) CHECK(in_front(waiting_.at(queue[i - 1].first), waiting_.at(queue[i].first)));
    }
    hold_under_another_broker(queue);
  }

  // Told in the order of arrivals, the next one has the same queue.
  void hold_under_another_broker(const std::vector<std::pair<SessionId, Queued>>& queue) const {
    Placement next(make_devices());
    std::map<uint64_t, std::pair<const PlacementRequest*, uint64_t>> arrivals;
    for (const auto& [session, queued] : queue)
      arrivals[waiting_.at(session).arrival] = {&waiting_.at(session).request, queued.round};
    for (const auto& [arrival, one] : arrivals) CHECK_FALSE(next.wait(*one.first, one.second).has_value());
    const auto again = next.waiting();
    REQUIRE(again.size() == queue.size());
    for (size_t i = 0; i < queue.size(); ++i) CHECK(again[i].first == queue[i].first);
  }

  // When sessions end and nobody else comes, everybody has a turn.
  void end_all() {
    ending_ = true;
    std::fill(used_.begin(), used_.end(), 0);
    used_seen_ = {used_};
    start();
    for (size_t left = waiting_.size() + running_.size(); left > 0; --left) leave();
    CHECK(waiting_.empty());
    CHECK(running_.empty());
    CHECK(reservations_.empty());
  }

  std::mt19937_64 random_;
  const unsigned devices_;
  const unsigned sessions_max_;
  Placement placement_;
  std::vector<uint64_t> used_;
  std::vector<std::vector<uint64_t>> used_seen_;  // since the last event
  std::vector<unsigned> tenant_max_;
  std::map<SessionId, Running> reservations_;
  struct Rounds {
    uint64_t current = 0;
    std::map<TenantId, uint64_t> served;
  };
  std::map<ServiceClass, Rounds> rounds_;
  bool ending_ = false;
  std::map<SessionId, Seen> waiting_;
  std::map<SessionId, Running> running_;
  uint64_t sessions_ = 0, arrivals_ = 0;
};

}  // namespace

TEST_CASE("the queue keeps its promises and nobody waits for ever, whatever comes and goes") {
  const unsigned scenarios = test::is_long_form() ? kScenariosLong : kScenarios;
  for (uint64_t seed = 1; seed <= scenarios; ++seed) {
    CAPTURE(seed);
    Scenario(seed).run();
  }
}

}  // namespace gpuwire::scheduler
