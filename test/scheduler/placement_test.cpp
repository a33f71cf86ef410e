// Placement against what the queue promises: scenarios of arrivals, ends, memory that comes and goes, and changed
// settings, each from a seed.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include <doctest/doctest.h>

#include "scheduler/placement.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;
constexpr unsigned kScenarios = 12'000, kSteps = 60;

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
    PlacementAnswer answer = placement_.ask(request);
    CHECK(std::holds_alternative<NeverFits>(answer) == !could_ever(request));
    if (auto* never = std::get_if<NeverFits>(&answer)) {
      CHECK_FALSE(never->reason.empty());
      return;
    }
    waiting_[request.session] = {request, ++arrivals_, rounds_[request.service_class].current};
    if (auto* placed = std::get_if<Placed>(&answer)) begin(request.session, *placed, false);
    forget_rounds();
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

PlacementRequest asks(uint64_t session, uint64_t gib = 0, unsigned gpus = 1,
                      ServiceClass service_class = ServiceClass::batch) {
  return {.session = SessionId(session),
          .tenant = TenantId(session),
          .service_class = service_class,
          .gpus = gpus,
          .memory_bytes = gib * kGiB};
}
std::vector<DeviceIndex> devices_of(const PlacementAnswer& answer) {
  auto* placed = std::get_if<Placed>(&answer);
  return placed ? placed->devices : std::vector<DeviceIndex>{};
}
std::string reason_of(const PlacementAnswer& answer) {
  auto* never = std::get_if<NeverFits>(&answer);
  return never ? never->reason : "";
}
size_t place_of(const PlacementAnswer& answer) {
  auto* queued = std::get_if<Queued>(&answer);
  return queued ? queued->place : 0;
}

}  // namespace

TEST_CASE("whatever comes and goes, the queue keeps its promises and nobody waits for ever") {
  for (uint64_t seed = 1; seed <= kScenarios; ++seed) {
    CAPTURE(seed);
    Scenario(seed).run();
  }
}

TEST_CASE("sessions go to the least loaded devices") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {16 * kGiB}, {16 * kGiB}});
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  CHECK(devices_of(placement.ask(asks(2))) == std::vector<DeviceIndex>{1});
  CHECK(devices_of(placement.ask(asks(3, 0, 2))) == std::vector<DeviceIndex>{0, 2});
  placement.leave(SessionId(1));
  CHECK(devices_of(placement.ask(asks(4, 0, 2))) == std::vector<DeviceIndex>{0, 1});
}

TEST_CASE("what can never be is refused with the reason") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {8 * kGiB}});
  placement.set_memory(
      {.free_now = {},
       .most = [](TenantId tenant, DeviceIndex) { return tenant == TenantId(7) ? 4 * kGiB : 64 * kGiB; },
       .held = {},
       .held_by = {},
       .guaranteed = {},
       .reserved = {},
       .reserve = {}});
  CHECK(reason_of(placement.ask(asks(1, 0, 3))) == "3 GPUs asked for, and this server has 2 GPUs for the tenant");
  CHECK(reason_of(placement.ask(asks(2, 20))) ==
        "20 GiB asked for, and the tenant can never have that much: 16 GiB at most on a GPU");
  CHECK(reason_of(placement.ask(asks(3, 12, 2))) ==
        "12 GiB on each of 2 GPUs asked for, and the tenant can never have that much: 16 GiB at most on a GPU, and "
        "enough on 1 GPU only");
  CHECK(reason_of(placement.ask(asks(7, 6))).find("4 GiB at most") != std::string::npos);
  CHECK(placement.waiting().empty());
}

TEST_CASE("bytes that one session was promised are not promised to the next before they are taken") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  CHECK(devices_of(placement.ask(asks(1, 10))).size() == 1);
  CHECK(place_of(placement.ask(asks(2, 10))) == 1);
  CHECK(devices_of(placement.ask(asks(3, 6))).size() == 1);
  placement.leave(SessionId(1));
  CHECK(placement.start_waiting().size() == 1);
}

TEST_CASE("who waits for memory hears how much of it programs that run have reserved") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}, {16 * kGiB}});
  placement.set_memory({.free_now = [](TenantId, DeviceIndex) { return 3 * kGiB; },
                        .most = {},
                        .held = {},
                        .held_by = {},
                        .guaranteed = {},
                        .reserved = [](DeviceIndex device) { return (device + 1) * 5 * kGiB; },
                        .reserve = {}});
  auto why = [&](PlacementRequest request) {
    auto answer = placement.ask(request);
    REQUIRE(std::holds_alternative<Queued>(answer));
    return std::get<Queued>(answer).why;
  };
  CHECK(why(asks(1, 4)) == "4 GiB are not free on 1 GPU now; 15 GiB are reserved by programs that run");
  PlacementRequest on_second = asks(2, 4, 1, ServiceClass::realtime);
  on_second.allowed = {1};
  CHECK(why(on_second) == "4 GiB are not free on 1 GPU now; 10 GiB are reserved by programs that run");
}

TEST_CASE("a small request overtakes a large one of its class a few times, then the large one is served first") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 3}});
  REQUIRE(devices_of(placement.ask(asks(1, 10))).size() == 1);
  REQUIRE(place_of(placement.ask(asks(2, 10))) == 1);
  unsigned served = 0;
  for (uint64_t small = 10; small < 10 + 3 * kOvertakenMax; ++small) {
    if (devices_of(placement.ask(asks(small, 1))).empty()) break;
    ++served;
    placement.leave(SessionId(small));
  }
  CHECK(served == kOvertakenMax);
  placement.leave(SessionId(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 2);
  CHECK(started[0].first == SessionId(2));
}

namespace {

// GPUs for one session each. Somebody else's session runs on the first, a gang waits for all, and small ones that come
// all the time use what is there. Time goes in steps.
class GangBehindLongSession {
 public:
  static constexpr unsigned kGpus = 4, kLongSteps = 300, kSmallStepsMax = 20;
  static constexpr SessionId kLong{1}, kGang{2};

  explicit GangBehindLongSession(uint64_t seed)
      : random_(seed), placement_(std::vector<Placement::Device>(kGpus, {16 * kGiB, 1})) {
    PlacementRequest first = asks(uint64_t(kLong));
    first.allowed = {0};
    REQUIRE(devices_of(placement_.ask(first)) == std::vector<DeviceIndex>{0});
    begun(kLong, {{0}});
    ends_[kLong] = kLongSteps;
    REQUIRE(place_of(placement_.ask(asks(uint64_t(kGang), 0, kGpus))) == 1);
  }

  void run() {
    for (now_ = 0; !runs_.contains(kGang) && now_ < 2 * kLongSteps; ++now_) {
      for (auto one = ends_.begin(); one != ends_.end();) {
        if (one->second > now_) {
          ++one;
          continue;
        }
        placement_.leave(one->first);
        runs_.erase(one->first);
        one = ends_.erase(one);
      }
      for (auto& [session, placed] : placement_.start_waiting()) begun(session, placed);
      for (unsigned come = 0; come < kGpus; ++come) {
        const SessionId session{++last_};
        auto answer = placement_.ask(asks(last_));
        if (auto* placed = std::get_if<Placed>(&answer)) begun(session, *placed);
      }
      REQUIRE(placement_.check() == "");
      if (runs_.contains(kLong)) idle_while_long_ += kGpus - unsigned(runs_.size());
      while (placement_.waiting().size() > 12) placement_.cancel(placement_.waiting().back().first);
    }
  }

  unsigned idle_while_long() const { return idle_while_long_; }
  bool gang_runs() const { return runs_.contains(kGang); }
  unsigned now() const { return now_; }

 private:
  void begun(SessionId session, const Placed& placed) {
    runs_[session] = placed.devices;
    ends_[session] = now_ + std::uniform_int_distribution<unsigned>(1, kSmallStepsMax)(random_);
  }

  std::mt19937_64 random_;
  Placement placement_;
  std::map<SessionId, std::vector<DeviceIndex>> runs_;
  std::map<SessionId, unsigned> ends_;
  uint64_t last_ = 100;
  unsigned now_ = 0, idle_while_long_ = 0;
};

}  // namespace

TEST_CASE("while a session that was there before it runs, a gang leaves no GPU idle, and then it is the next") {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    GangBehindLongSession scenario(seed);
    scenario.run();
    CHECK(scenario.idle_while_long() == 0);
    REQUIRE(scenario.gang_runs());
    // Those that run when the long one ends are waited for, and nobody begins any more.
    CHECK(scenario.now() <= scenario.kLongSteps + scenario.kSmallStepsMax + 1);
  }
}

TEST_CASE("a gang that only newer sessions are in the way of has its GPUs kept after it was overtaken a few times") {
  Placement placement(std::vector<Placement::Device>(2, {16 * kGiB, 1}));
  REQUIRE(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(asks(2, 0, 2))) == 1);
  for (uint64_t small = 10; small < 10 + 4 * kOvertakenMax; ++small) {
    REQUIRE(devices_of(placement.ask(asks(small))) == std::vector<DeviceIndex>{1});
    placement.leave(SessionId(small));
  }
  REQUIRE(devices_of(placement.ask(asks(3))) == std::vector<DeviceIndex>{1});
  placement.leave(SessionId(1));
  CHECK(placement.start_waiting().empty());
  CHECK(place_of(placement.ask(asks(4))) == 2);
  placement.leave(SessionId(3));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(2));
}

namespace {

// GPUs for one session each, a gang that waits for all of them, and others that come all the time, each for one GPU.
// Nobody knows how long a session runs. Time goes in minutes.
class GangBesideLongSessions {
 public:
  static constexpr unsigned kGpus = 4, kMinutesMax = 10'000;
  static constexpr uint64_t kGang = 1;

  // A session's minutes, from the minute in which it begins.
  using Length = std::function<unsigned(unsigned now)>;
  GangBesideLongSessions(Length length, unsigned gangs)
      : length_(std::move(length)), placement_(std::vector<Placement::Device>(kGpus, {16 * kGiB, 1})) {
    for (; last_ < 100 + kGpus; ++last_) come();
    for (uint64_t gang = kGang; gang < kGang + gangs; ++gang) REQUIRE(place_of(placement_.ask(asks(gang, 0, kGpus))));
  }

  void run() {
    for (now_ = 1; !gang_began_ && now_ < kMinutesMax; ++now_) {
      std::erase_if(ends_, [&](const auto& one) {
        if (one.second <= now_) placement_.leave(one.first);
        return one.second <= now_;
      });
      placement_.pass_time(std::chrono::minutes(now_));
      for (auto& [session, placed] : placement_.start_waiting()) begun(session);
      for (unsigned i = 0; i < kGpus; ++i, ++last_) come();
      REQUIRE(placement_.check() == "");
      if (gang_began_) break;
      const unsigned idle = kGpus - unsigned(ends_.size());
      idle_ += idle;
      idle_at_once_ = idle != 0 ? idle_at_once_ + 1 : 0;
      idle_at_once_most_ = std::max(idle_at_once_most_, idle_at_once_);
      for (auto waiting = placement_.waiting(); waiting.size() > 12; waiting.pop_back())
        placement_.cancel(waiting.back().first);
    }
  }

  bool gang_began() const { return gang_began_; }
  unsigned minutes() const { return now_; }
  unsigned idle() const { return idle_; }                            // GPU minutes
  unsigned idle_at_once_most() const { return idle_at_once_most_; }  // minutes in a row in which some GPU was idle

 private:
  void come() {
    auto answer = placement_.ask(asks(last_));
    if (std::holds_alternative<Placed>(answer)) begun(SessionId(last_));
  }
  void begun(SessionId session) {
    if (uint64_t(session) < 100) gang_began_ = true;
    else ends_[session] = now_ + std::max(1u, length_(now_));
  }

  const Length length_;
  Placement placement_;
  std::map<SessionId, unsigned> ends_;
  uint64_t last_ = 100;
  unsigned now_ = 0, idle_ = 0, idle_at_once_ = 0, idle_at_once_most_ = 0;
  bool gang_began_ = false;
};

constexpr auto kKeptFirst = unsigned(kKeptForGangFirst / std::chrono::minutes(1));

}  // namespace

TEST_CASE("a long session that began after a gang came keeps the GPUs that wait with it idle for a bounded time") {
  // One of those that overtake the gang runs for a day, all others for some minutes.
  constexpr unsigned kLong = 24 * 60;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    bool long_one = false;
    GangBesideLongSessions scenario(
        [&](unsigned now) {
          if (now > 0 && !std::exchange(long_one, true)) return kLong;
          return std::uniform_int_distribution<unsigned>(1, 9)(random);
        },
        1);
    scenario.run();
    REQUIRE(scenario.gang_began());
    CHECK(scenario.idle_at_once_most() <= kKeptFirst + 1);
    // Kept once, and again when the long one has ended.
    CHECK(scenario.idle() <= 2 * (kKeptFirst + 1) * scenario.kGpus);
    CHECK(scenario.minutes() <= kLong + 100);
  }
}

TEST_CASE(
    "a gang begins in bounded time whatever sessions run when it waits, and keeps GPUs idle for half of it at most") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    // In the first scenarios all of them run for as long, and end at different times: one is always in the middle.
    const unsigned longest = std::uniform_int_distribution<unsigned>(kKeptFirst, 20 * kKeptFirst)(random);
    const unsigned gangs = std::uniform_int_distribution<unsigned>(1, 4)(random);
    bool first = true;
    GangBesideLongSessions scenario(
        [&](unsigned now) {
          if (now == 0) return std::uniform_int_distribution<unsigned>(1, longest)(random);
          if (seed <= 10) return longest;
          return std::uniform_int_distribution<unsigned>(std::exchange(first, false) ? longest : 1, longest)(random);
        },
        gangs);
    scenario.run();
    REQUIRE(scenario.gang_began());
    // Each time it is kept for twice as long; what it is kept for in vain is shorter than the longest session, and
    // lent for as long as that one goes on or it was kept.
    unsigned rounds = 0;
    for (unsigned kept = kKeptFirst; kept < longest; kept *= 2) ++rounds;
    CHECK(scenario.minutes() <= longest * (rounds + 4) + 2 * kOvertakenMax);
    CHECK(scenario.idle_at_once_most() <= std::max(longest, kKeptFirst) + 1);
    // The last time comes to its end with the gang's beginning, and not with lending.
    CHECK(scenario.idle() <= scenario.kGpus * (scenario.minutes() / 2 + longest + rounds + 1));
  }
}

TEST_CASE("time in which nobody else could use a gang's GPUs is not time for which they were kept") {
  Placement placement(std::vector<Placement::Device>(2, {16 * kGiB, 1}));
  Time now = std::chrono::hours(1);
  const auto pass = [&](Duration time) { placement.pass_time(now += time); };
  pass({});
  REQUIRE(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(asks(2, 0, 2))) == 1);
  for (uint64_t small = 10; small < 10 + kOvertakenMax; ++small) {
    REQUIRE(devices_of(placement.ask(asks(small))) == std::vector<DeviceIndex>{1});
    placement.leave(SessionId(small));
  }
  REQUIRE(devices_of(placement.ask(asks(3))) == std::vector<DeviceIndex>{1});
  placement.leave(SessionId(1));
  pass(100 * kKeptForGangFirst);
  REQUIRE(place_of(placement.ask(asks(4))) == 2);  // kept, with the third in the gang's way
  pass(kKeptForGangFirst - std::chrono::seconds(1));
  CHECK(placement.start_waiting().empty());
  pass(std::chrono::seconds(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(4));
  // It is the next as soon as none of them is there.
  placement.leave(SessionId(3));
  placement.leave(SessionId(4));
  started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].first == SessionId(2));
}

TEST_CASE("a lower class does not overtake a higher one, and a higher one stands in front") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  REQUIRE(devices_of(placement.ask(asks(1, 10))).size() == 1);
  CHECK(place_of(placement.ask(asks(2, 10))) == 1);
  CHECK(place_of(placement.ask(asks(3, 10, 1, ServiceClass::interactive))) == 1);
  CHECK(place_of(placement.ask(asks(4, 1))) == 3);
  placement.leave(SessionId(1));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 2);
  CHECK(started[0].first == SessionId(3));
  CHECK(started[1].first == SessionId(4));
}

TEST_CASE("who waits for its own tenant's session to end holds up nobody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB}});
  PlacementRequest first = asks(1), second = asks(2);
  first.tenant_sessions_max = second.tenant_sessions_max = 1;
  second.tenant = first.tenant;
  second.service_class = ServiceClass::realtime;
  CHECK(devices_of(placement.ask(first)).size() == 1);
  auto answer = placement.ask(second);
  REQUIRE(place_of(answer) == 1);
  CHECK(std::get<Queued>(answer).why.find("(1)") != std::string::npos);
  CHECK(devices_of(placement.ask(asks(3))).size() == 1);
}

namespace {

// One device of 80 GiB, of which a tenant may have 60.
struct Large {
  std::map<TenantId, uint64_t> used;  // without a reservation
  std::map<SessionId, uint64_t> used_by;
  Placement placement{std::vector<Placement::Device>{{80 * kGiB}}};
  std::map<SessionId, PlacementRequest> runs;

  static constexpr TenantId kGuaranteed{77};  // 10 GiB

  uint64_t held(TenantId tenant) const {
    uint64_t sum = used.contains(tenant) ? used.at(tenant) : 0;
    for (const auto& [session, request] : runs) sum += request.tenant == tenant ? request.memory_bytes : 0;
    return sum;
  }
  uint64_t guaranteed(TenantId tenant) const { return tenant == kGuaranteed ? 10 * kGiB : 0; }
  uint64_t free(TenantId tenant) const {
    uint64_t others = tenant == kGuaranteed ? 0 : std::max(held(kGuaranteed), guaranteed(kGuaranteed));
    std::set<TenantId> all;
    for (const auto& [other, bytes] : used) all.insert(other);
    for (const auto& [session, request] : runs) all.insert(request.tenant);
    for (TenantId other : all) {
      if (other != kGuaranteed && other != tenant) others += held(other);
    }
    const uint64_t most = std::min(60 * kGiB, 80 * kGiB - std::min(80 * kGiB, others));
    return most - std::min(most, held(tenant));
  }
  Large() {
    placement.set_memory(
        {.free_now = [this](TenantId tenant, DeviceIndex) { return free(tenant); },
         .most = [](TenantId, DeviceIndex) { return 60 * kGiB; },
         .held = [this](TenantId tenant, DeviceIndex) { return held(tenant); },
         .held_by = [this](SessionId session,
                           DeviceIndex) { return used_by.contains(session) ? used_by.at(session) : 0; },
         .guaranteed = [this](TenantId tenant, DeviceIndex) { return guaranteed(tenant); },
         .reserved = {},
         .reserve = {}});
  }
  bool begins(const PlacementRequest& request) {
    if (devices_of(placement.ask(request)).empty()) return false;
    runs[request.session] = request;
    return true;
  }
  // Its program takes what it has not reserved.
  void takes(const PlacementRequest& request, uint64_t gib) {
    used[request.tenant] += gib * kGiB;
    used_by[request.session] += gib * kGiB;
  }
  void ends(const PlacementRequest& request) {
    placement.leave(request.session);
    runs.erase(request.session);
    used[request.tenant] -= used_by[request.session];
    used_by.erase(request.session);
  }
};

PlacementRequest of_tenant(TenantId tenant, PlacementRequest request) {
  request.tenant = tenant;
  return request;
}

}  // namespace

TEST_CASE("somebody who comes with one session is not behind all of another tenant's") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  REQUIRE(devices_of(placement.ask(asks(99))).size() == 1);
  for (uint64_t session = 1; session <= 32; ++session)
    CHECK(place_of(placement.ask(of_tenant(TenantId(1), asks(session)))) == session);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(50)))) == 2);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(51)))) == 4);
  CHECK(place_of(placement.ask(of_tenant(TenantId(3), asks(60)))) == 3);
  auto last = SessionId(99);
  std::vector<uint64_t> order;
  while (order.size() < 6) {
    placement.leave(last);
    const auto started = placement.start_waiting();
    REQUIRE(started.size() == 1);
    last = started.front().first;
    order.push_back(uint64_t(last));
  }
  CHECK(order == std::vector<uint64_t>{1, 50, 60, 2, 51, 3});
}

TEST_CASE("who comes again and again is no more in front of those who wait than they of it") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  REQUIRE(devices_of(placement.ask(asks(99))).size() == 1);
  for (uint64_t session = 1; session <= 4; ++session) placement.ask(of_tenant(TenantId(1), asks(session)));
  auto last = SessionId(99);
  std::string tenants;
  for (uint64_t session = 100; tenants.size() < 8; ++session) {
    placement.ask(of_tenant(TenantId(2), asks(session)));
    placement.leave(last);
    const auto started = placement.start_waiting();
    REQUIRE(started.size() == 1);
    last = started.front().first;
    tenants += uint64_t(last) < 100 ? '1' : '2';
  }
  CHECK(tenants == "12121212");
}

TEST_CASE("what was had while nobody waited is held against nobody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}});
  for (uint64_t session = 1; session <= 10; ++session) {
    REQUIRE(devices_of(placement.ask(of_tenant(TenantId(1), asks(session)))).size() == 1);
    if (session < 10) placement.leave(SessionId(session));
  }
  CHECK(place_of(placement.ask(of_tenant(TenantId(1), asks(11)))) == 1);
  CHECK(place_of(placement.ask(of_tenant(TenantId(2), asks(12)))) == 2);
}

TEST_CASE("a tenant that waits for memory that its own sessions have, reserved or not, holds up nobody") {
  for (const bool reserved : {true, false}) {
    CAPTURE(reserved);
    Large gpu;
    const PlacementRequest first = of_tenant(TenantId(1), asks(1, reserved ? 50 : 0, 1, ServiceClass::interactive));
    const PlacementRequest second = of_tenant(TenantId(1), asks(2, 50, 1, ServiceClass::interactive));
    REQUIRE(gpu.begins(first));
    if (!reserved) gpu.takes(first, 50);
    REQUIRE_FALSE(gpu.begins(second));
    // Far more often than anybody is overtaken: of its class and below it, with and without memory.
    for (uint64_t session = 10; session < 10 + 4 * kOvertakenMax; ++session) {
      const auto service_class = session % 2 ? ServiceClass::interactive : ServiceClass::batch;
      const PlacementRequest other = asks(session, session % 4 < 2 ? 0 : 10, 1, service_class);
      REQUIRE(gpu.begins(other));
      gpu.ends(other);
    }
    gpu.ends(first);
    CHECK(gpu.placement.start_waiting().size() == 1);
  }
}

TEST_CASE("who can have no more within its tenant's limit holds up nobody, whatever others have") {
  Large gpu;
  const PlacementRequest neighbour = asks(9), own = of_tenant(TenantId(1), asks(1, 20)),
                         waits = of_tenant(TenantId(1), asks(2, 50));
  REQUIRE(gpu.begins(neighbour));
  gpu.takes(neighbour, 35);
  REQUIRE(gpu.begins(own));
  REQUIRE_FALSE(gpu.begins(waits));
  CHECK(gpu.begins(asks(3, 10, 1, ServiceClass::scavenger)));
}

TEST_CASE("who waits for a place on a GPU that its own session has keeps no other GPU from anybody") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}, {16 * kGiB, 1}});
  const PlacementRequest small = of_tenant(TenantId(1), asks(1)), both = of_tenant(TenantId(1), asks(2, 0, 2));
  REQUIRE(devices_of(placement.ask(small)) == std::vector<DeviceIndex>{0});
  REQUIRE(place_of(placement.ask(both)) == 1);
  CHECK(devices_of(placement.ask(asks(3, 0, 1, ServiceClass::scavenger))) == std::vector<DeviceIndex>{1});
}

TEST_CASE("who waits for others' memory keeps it from lower classes, and nothing else from anybody") {
  Large gpu;
  const PlacementRequest notebook = asks(1);
  REQUIRE(gpu.begins(notebook));
  gpu.takes(notebook, 30);
  REQUIRE_FALSE(gpu.begins(asks(2, 50, 1, ServiceClass::interactive)));
  CHECK_FALSE(gpu.begins(asks(3, 1)));
  for (uint64_t session = 10; session < 10 + 4 * kOvertakenMax; ++session) CHECK(gpu.begins(asks(session)));
  // What is guaranteed could not have been given to it.
  CHECK(gpu.begins(of_tenant(Large::kGuaranteed, asks(4, 6))));
  CHECK_FALSE(gpu.begins(of_tenant(Large::kGuaranteed, asks(5, 6))));
  gpu.ends(notebook);
  const auto started = gpu.placement.start_waiting();
  REQUIRE_FALSE(started.empty());
  CHECK(started[0].first == SessionId(2));
}

TEST_CASE("sessions that reserve nothing do not starve one that waits for memory") {
  Large gpu;
  std::vector<PlacementRequest> some;
  uint64_t session = 10;
  const auto one_more = [&] {
    const PlacementRequest request = asks(++session);
    if (!gpu.begins(request)) return false;
    gpu.takes(request, 10);
    some.push_back(request);
    return true;
  };
  for (int i = 0; i < 3; ++i) REQUIRE(one_more());
  const PlacementRequest large = asks(1, 55);
  REQUIRE_FALSE(gpu.begins(large));
  bool began = false;
  unsigned ended = 0;
  // Each time that a session ends another one comes.
  while (!began && ended < 100) {
    gpu.ends(some.front());
    some.erase(some.begin());
    ++ended;
    for (auto& [started, placed] : gpu.placement.start_waiting()) began |= started == large.session;
    if (!began) one_more();
  }
  CHECK(began);
  CHECK(ended <= 3 + kOvertakenMax + 3);
}

TEST_CASE("a session that runs already has its place, and what comes afterwards goes elsewhere or waits") {
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 1}, {16 * kGiB, 1}});
  placement.adopt(SessionId(7), TenantId(1), 0, {1});
  CHECK(devices_of(placement.ask(asks(1))) == std::vector<DeviceIndex>{0});
  CHECK(place_of(placement.ask(asks(2))) == 1);
  CHECK(placement.check() == "");
  placement.leave(SessionId(7));
  auto started = placement.start_waiting();
  REQUIRE(started.size() == 1);
  CHECK(started[0].second.devices == std::vector<DeviceIndex>{1});
}

}  // namespace gpuwire::scheduler
