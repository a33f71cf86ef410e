#include "server/broker/worker/worker_pools.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpuwire::server {
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
  for (scheduler::DeviceIndex device : devices)
    wanted.push_back(device < names.size() ? names[device] : std::to_string(device));
  return fmt::format("{}", fmt::join(wanted, ","));
}

WorkerPools::WorkerPools(boost::asio::io_context& io, WorkerCommand command, unsigned spares, WorkerPool::Events events,
                         EntryStore* keeping)
    : io_(io),
      command_(std::move(command)),
      spares_(spares),
      events_(std::move(events)),
      keeping_(keeping),
      hold_timer_(io) {}

void WorkerPools::start() { pool({}).start_one_more(); }

unsigned WorkerPools::spares(const Kind& kind) const {
  bool ready = std::find(ready_sets_.begin(), ready_sets_.end(), kind.devices) != ready_sets_.end();
  // Queries are short and rare: one is ready as long as any spares are kept.
  if (kind.management) return kind.devices.empty() ? std::min(spares_, 1u) : 0;
  return ready ? spares_ : 0;
}

WorkerPool& WorkerPools::pool(const Kind& kind) {
  auto [at, added] = pools_.try_emplace(kind);
  if (!added) return *at->second.pool;
  auto& [number, pool] = at->second;
  number = ++last_number_;
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
  pool = std::make_unique<WorkerPool>(io_, std::move(command), shares_, unread_, starts_, number, std::move(events),
                                      keeping_);
  if (closed_.empty()) pool->keep_spares(spares(kind));
  else pool->close(closed_);
  return *pool;
}

// Not now: a pool may be in the middle of what has changed it.
void WorkerPools::start_later() {
  if (std::exchange(starting_later_, true)) return;
  boost::asio::post(io_, lifetime_.guard([this] {
    starting_later_ = false;
    start_more();
  }));
}

void WorkerPools::start_more() {
  auto now = std::chrono::steady_clock::now();
  while (auto number = starts_.next(now)) {
    auto found =
        std::find_if(pools_.begin(), pools_.end(), [&](const auto& one) { return one.second.number == *number; });
    found->second.pool->start_one();  // if that fails, the pool is not open any more
  }
  auto change = starts_.next_change(now);
  if (!change) {
    hold_timer_.cancel();
    return;
  }
  hold_timer_.expires_at(*change);
  hold_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start_more();
  }));
}

void WorkerPools::keep_ready(std::vector<DeviceSet> sets, size_t devices) {
  devices_ = devices;
  ready_sets_ = std::move(sets);
  for (DeviceSet& set : ready_sets_) {
    if (set.size() == devices_) set.clear();
    pool({.devices = set});
  }
  for (auto& [kind, one] : pools_) one.pool->keep_spares(spares(kind));
  drop_idle_later();
}

WorkerPool& WorkerPools::of(const SessionRecord& session) {
  Kind kind{session.management, session.devices};
  if (kind.devices.size() == devices_) kind.devices.clear();
  return pool(kind);
}

void WorkerPools::drop_idle_later() {
  // Not now: one of them may be who is calling.
  boost::asio::post(io_, lifetime_.guard([this] {
    std::erase_if(pools_, [this](const auto& one) {
      return one.first != Kind{} && one.second.pool->idle() && spares(one.first) == 0;
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
