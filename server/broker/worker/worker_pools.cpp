#include "server/broker/worker/worker_pools.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpuwire::server {

using scheduler::DeviceIndex;

namespace {

constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";

}  // namespace

std::string visible_devices(const DeviceSet& devices, const char* own) {
  std::vector<std::string> names;
  if (own) {
    std::string_view rest = own;
    for (bool more = true; more;) {
      size_t comma = rest.find(',');
      names.emplace_back(rest.substr(0, comma));
      more = comma != std::string_view::npos;
      if (more) rest.remove_prefix(comma + 1);
    }
  }
  std::vector<std::string> wanted;
  for (DeviceIndex device : devices) wanted.push_back(device < names.size() ? names[device] : std::to_string(device));
  return fmt::format("{}", fmt::join(wanted, ","));
}

WorkerPools::WorkerPools(boost::asio::io_context& io, WorkerCommand command, PrewarmedDemand::Limits prewarmed,
                         WorkerPool::Events events, EntryStore* keeping)
    : io_(io),
      command_(std::move(command)),
      prewarmed_(prewarmed),
      events_(std::move(events)),
      keeping_(keeping),
      poll_timer_(io) {}

void WorkerPools::start() { pool({}).start_one_more(); }

void WorkerPools::start_anew() {
  WorkerPool& all = pool({});
  all.end_prewarmed(all.prewarmed());
  all.start_one();
}

PrewarmedDemand::Limits WorkerPools::limits(const Kind& kind) const {
  const unsigned one = std::min(prewarmed_.least, 1u);
  // Queries are short and rare: one prewarmed worker is kept for them if any are kept.
  if (kind.management) return kind.devices.empty() ? PrewarmedDemand::Limits{one, one} : PrewarmedDemand::Limits{0, 0};
  if (std::find(ready_sets_.begin(), ready_sets_.end(), kind.devices) == ready_sets_.end()) return {0, 0};
  const auto extra_max = unsigned(std::max<size_t>(1, kExtraPrewarmedMax / ready_sets_.size()));
  return {prewarmed_.least, std::min(prewarmed_.most, prewarmed_.least + extra_max)};
}

WorkerPool& WorkerPools::pool(const Kind& kind) {
  auto [at, added] = pools_.try_emplace(kind);
  if (!added) return *at->second.pool;
  Numbered& numbered = at->second;
  numbered.number = ++last_number_;
  WorkerCommand command = command_;
  if (kind.management) command.arguments.push_back("--management");
  if (!kind.devices.empty())
    command.environment.emplace_back(kVisibleDevices, visible_devices(kind.devices, std::getenv(kVisibleDevices)));
  WorkerPool::Events events = events_;
  if (kind != Kind{}) {
    events.ready = [](const Inventory&) {};
    events.hopeless = [](const std::string&) {};
  }
  events.idle = [this] { drop_idle_later(); };
  events.starts_changed = [this] { start_later(); };
  events.wanted = [&demand = numbered.demand] { demand.came(std::chrono::steady_clock::now()); };
  events.started = [&demand = numbered.demand](PrewarmedDemand::Duration took) { demand.started(took); };
  numbered.demand.set_limits(limits(kind));
  numbered.pool = std::make_unique<WorkerPool>(io_, std::move(command), shares_, unread_, starts_, numbered.number,
                                               std::move(events), keeping_);
  if (closed_.empty()) start_later();
  else numbered.pool->close(closed_);
  return *numbered.pool;
}

// Starts later: the pool that has changed may be in the middle of a step.
void WorkerPools::start_later() {
  if (std::exchange(starting_later_, true)) return;
  boost::asio::post(io_, lifetime_.guard([this] {
    starting_later_ = false;
    start_more();
  }));
}

void WorkerPools::start_more() {
  auto now = std::chrono::steady_clock::now();
  follow_demand(now);
  while (auto number = starts_.next(now)) {
    auto found =
        std::find_if(pools_.begin(), pools_.end(), [&](const auto& one) { return one.second.number == *number; });
    found->second.pool->start_one();  // if it fails, the pool is not open any more
  }
  if (auto poll = next_poll(now)) {
    poll_timer_.expires_at(*poll);
    poll_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
      if (!error) start_more();
    }));
  } else {
    poll_timer_.cancel();
  }
  notify_memory();
}

// Returns the next time at which a slow start stops holding up the others, fewer prewarmed workers are wanted, or a
// rest is over.
std::optional<WorkerPools::Time> WorkerPools::next_poll(Time now) const {
  auto first = starts_.next_change(now);
  auto also = [&](std::optional<Time> when) {
    if (when && *when > now && (!first || *when < *first)) first = when;
  };
  for (const auto& [kind, one] : pools_) also(one.demand.next_change(now));
  for (const auto& [device, rest] : rests_) also(rest.until);
  return first;
}

// --- prewarmed workers ----------------------------------------------------------------------------------------------

WorkerPools::Contexts WorkerPools::contexts_on(DeviceIndex device) const {
  Contexts contexts;
  for (const auto& [kind, one] : pools_) {
    if (kind.management || device_of(kind) != device) continue;
    contexts.prewarmed += one.pool->prewarmed();
    contexts.ending += one.pool->ending();
  }
  return contexts;
}

size_t WorkerPools::prewarmed_max(DeviceIndex device, Time now) const {
  const size_t max = memory_ ? memory_->prewarmed_max(device) : SIZE_MAX;
  auto rest = rests_.find(device);
  return rest != rests_.end() && now < rest->second.until ? std::min(max, rest->second.contexts) : max;
}

// Ends prewarmed workers one by one, each of the pool that has most.
void WorkerPools::shrink(DeviceIndex device, size_t contexts) {
  for (size_t prewarmed = contexts_on(device).prewarmed; prewarmed > contexts; --prewarmed) {
    WorkerPool* most = nullptr;
    for (auto& [kind, one] : pools_) {
      const bool here = !kind.management && device_of(kind) == device;
      if (here && (!most || one.pool->prewarmed() > most->prewarmed())) most = one.pool.get();
    }
    most->end_prewarmed(1);
  }
}

void WorkerPools::keep_at_most(DeviceIndex device, size_t contexts) {
  rests_[device] = {contexts, std::chrono::steady_clock::now() + std::chrono::milliseconds(kPrewarmedRestMs)};
  shrink(device, contexts);
  start_later();  // it also sets the timer for the rest's end
}

void WorkerPools::follow_demand(Time now) {
  if (devices_ == 0 || !closed_.empty()) return;  // the first worker reports the devices
  std::erase_if(rests_, [&](const auto& rest) { return rest.second.until <= now; });
  std::map<DeviceIndex, size_t> room;
  for (auto& [kind, one] : pools_) {
    const DeviceIndex device = device_of(kind);
    if (kind.management || room.contains(device)) continue;
    const size_t max = prewarmed_max(device, now);
    shrink(device, max);
    const Contexts there = contexts_on(device);
    room[device] = max - std::min(max, there.prewarmed + there.ending);
  }
  for (auto& [kind, one] : pools_) {
    size_t wanted = one.demand.wanted(now);
    if (!kind.management) {
      size_t& left = room[device_of(kind)];
      const size_t has = one.pool->prewarmed(), more = std::min(wanted - std::min(wanted, has), left);
      left -= more;
      wanted = std::min(wanted, has + more);
    }
    one.pool->keep_prewarmed(unsigned(wanted));
  }
}

// Called last: the report may admit a session, which needs a worker.
void WorkerPools::notify_memory() {
  for (DeviceIndex device = 0; memory_ && device < devices_; ++device) {
    const Contexts there = contexts_on(device);
    const size_t now = there.prewarmed + there.ending;
    if (std::exchange(notified_[device], now) != now) memory_->prewarmed_changed(device, now);
  }
}

void WorkerPools::keep_ready(std::vector<DeviceSet> sets, size_t devices) {
  devices_ = devices;
  ready_sets_ = std::move(sets);
  for (DeviceSet& set : ready_sets_) {
    if (set.size() == devices_) set.clear();
    pool({.devices = set});
  }
  for (auto& [kind, one] : pools_) one.demand.set_limits(limits(kind));
  follow_demand(std::chrono::steady_clock::now());  // at once: the first worker may become a prewarmed worker
  drop_idle_later();
}

WorkerPool& WorkerPools::of(const SessionRecord& session) {
  Kind kind{session.management, session.devices};
  if (kind.devices.size() == devices_) kind.devices.clear();
  return pool(kind);
}

void WorkerPools::drop_idle_later() {
  // Later: one of these pools may be the caller.
  boost::asio::post(io_, lifetime_.guard([this] {
    std::erase_if(pools_, [this](const auto& one) {
      return one.first != Kind{} && one.second.pool->idle() && limits(one.first).least == 0;
    });
  }));
}

void WorkerPools::let_go() {
  for (auto& [kind, one] : pools_) one.pool->let_go();
}

void WorkerPools::close(const std::string& reason) {
  closed_ = reason;
  for (auto& [kind, one] : pools_) one.pool->close(reason);
}

}  // namespace gpuwire::server
