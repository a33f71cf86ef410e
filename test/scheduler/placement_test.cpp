// Placement against what the queue promises: scenarios of arrivals, ends, memory that comes and goes, and changed
// settings, each from a seed.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include <doctest/doctest.h>

#include "scheduler/placement.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;
constexpr unsigned kScenarios = 12'000, kSteps = 60;

struct Seen {
  PlacementRequest request;
  uint64_t arrival = 0;
  unsigned overtaken = 0;
};

class Scenario {
 public:
  explicit Scenario(uint64_t seed)
      : random_(seed), devices_(pick(1, 6)), sessions_max_(pick(0, 3)), placement_(make_devices()) {
    used_.assign(devices_, 0);
    placement_.set_memory(
        {.free_now = [this](TenantId, DeviceIndex device) { return kDevice - used_[device]; },
         .most = [](TenantId, DeviceIndex) { return kDevice; },
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
    waiting_[request.session] = {request, ++arrivals_};
    if (auto* placed = std::get_if<Placed>(&answer)) begin(request.session, *placed);
  }

  // Now and then somebody has been quicker, and all of a device is gone.
  bool reserve(const PlacementRequest& request, const std::vector<DeviceIndex>& devices) {
    CHECK(request.memory_bytes > 0);
    for (DeviceIndex device : devices) CHECK(kDevice - used_[device] >= request.memory_bytes);
    bool late = !ending_ && pick(0, 7) == 0;
    if (late) used_[devices.front()] = kDevice;
    else CHECK(reservations_.insert(request.session).second);
    return !late;
  }

  // What the one that starts must not do to those in front of it.
  void begin(SessionId session, const Placed& placed) {
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
    waiting_.erase(session);
    for (auto& [other, one] : waiting_) {
      bool in_front =
          std::pair(one.request.service_class, one.arrival) < std::pair(request.service_class, seen.arrival);
      bool wants = std::any_of(placed.devices.begin(), placed.devices.end(),
                               [&](DeviceIndex device) { return may_use(one.request, device); });
      bool own_limit =
          one.request.tenant_sessions_max && sessions_of(one.request.tenant) >= one.request.tenant_sessions_max;
      if (!in_front || !wants || own_limit) continue;
      CHECK(one.request.service_class == request.service_class);
      CHECK(++one.overtaken <= kOvertakenMax);
    }
    running_[session] = {request, placed.devices};
  }

  size_t sessions_on(DeviceIndex device) const {
    return size_t(std::count_if(running_.begin(), running_.end(), [&](auto& one) {
      return std::count(one.second.second.begin(), one.second.second.end(), device) != 0;
    }));
  }
  size_t sessions_of(TenantId tenant) const {
    return size_t(
        std::count_if(running_.begin(), running_.end(), [&](auto& one) { return one.second.first.tenant == tenant; }));
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
    start();
  }
  void take_memory() {
    used_[pick(0, devices_ - 1)] = pick(0, 16) * kGiB;
    start();
  }
  void revise() {
    if (waiting_.empty()) return;
    auto one = std::next(waiting_.begin(), pick(0, unsigned(waiting_.size()) - 1));
    one->second.request.service_class = ServiceClass(pick(0, 3));
    one->second.request.memory_bytes = pick(0, 17) * kGiB;
    bool never = placement_.revise(one->second.request).has_value();
    CHECK(never == !could_ever(one->second.request));
    if (never) waiting_.erase(one);
    start();
  }
  void start() {
    for (auto& [session, placed] : placement_.start_waiting()) begin(session, placed);
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
      CHECK(waiting_.contains(queue[i].first));
    }
  }

  // When sessions end and nobody else comes, everybody has a turn.
  void end_all() {
    ending_ = true;
    std::fill(used_.begin(), used_.end(), 0);
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
  std::vector<unsigned> tenant_max_;
  std::set<SessionId> reservations_;
  bool ending_ = false;
  std::map<SessionId, Seen> waiting_;
  std::map<SessionId, std::pair<PlacementRequest, std::vector<DeviceIndex>>> running_;
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
  Placement placement(std::vector<Placement::Device>{{16 * kGiB, 2}, {16 * kGiB, 2}});
  REQUIRE(devices_of(placement.ask(asks(1, 10))).size() == 1);
  REQUIRE(place_of(placement.ask(asks(2, 10, 2))) == 1);
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
