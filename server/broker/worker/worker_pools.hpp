// WorkerPools has a pool of workers for each set of visible devices that sessions use.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "scheduler/types.hpp"
#include "server/base/descriptors.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/broker/session/share_table.hpp"
#include "server/broker/worker/prewarmed_contexts.hpp"
#include "server/broker/worker/prewarmed_demand.hpp"
#include "server/broker/worker/worker_pool.hpp"
#include "server/broker/worker/worker_starts.hpp"

namespace gpuwire::server {

using DeviceSet = std::vector<scheduler::DeviceIndex>;  // ascending; empty: all

// Returns the value of CUDA_VISIBLE_DEVICES for a process that has to see these devices. `own`: this process's value of
// the variable (null: not set), relative to which `devices` counts.
std::string visible_devices(const DeviceSet& devices, const char* own);

// The broker's thread only. Unused pools are destroyed.
//
// The number of prewarmed workers follows PrewarmedDemand, as far as the GPU's memory has room for their contexts: a
// ready worker has its context on the first of its devices.
class WorkerPools final : public PrewarmedContexts {
 public:
  // Only the pool of workers that see all devices reports `events.ready` and `events.hopeless`.
  WorkerPools(boost::asio::io_context& io, WorkerCommand command, PrewarmedDemand::Limits prewarmed,
              WorkerPool::Events events, EntryStore* keeping = nullptr);
  // `memory` outlives this object; without it there is room for all prewarmed workers.
  void set_memory(PrewarmedMemory& memory) { memory_ = &memory; }

  // Starts one worker that sees all devices; its ready message has their number.
  void start();
  // As start(), after the devices may have changed: earlier workers have seen the old ones, and end.
  void start_anew();
  void devices_known(size_t devices) { devices_ = devices; }
  // Keeps prewarmed workers for these sets; workers for other sets are started when a session needs one.
  void keep_ready(std::vector<DeviceSet> sets, size_t devices);
  // Returns the pool for the devices of an admitted session.
  WorkerPool& of(const SessionRecord& session);
  void close(const std::string& reason);
  // As WorkerPool::let_go().
  void let_go();
  void keep_at_most(scheduler::DeviceIndex device, size_t contexts) override;

 private:
  struct Kind {
    bool management = false;
    DeviceSet devices;
    auto operator<=>(const Kind&) const = default;
  };
  using Time = PrewarmedDemand::Time;
  WorkerPool& pool(const Kind& kind);
  PrewarmedDemand::Limits limits(const Kind& kind) const;
  void drop_idle_later();
  void start_later();
  void start_more();
  static scheduler::DeviceIndex device_of(const Kind& kind) { return kind.devices.empty() ? 0 : kind.devices.front(); }
  struct Contexts {
    size_t prewarmed = 0, ending = 0;
  };
  Contexts contexts_on(scheduler::DeviceIndex device) const;
  size_t prewarmed_max(scheduler::DeviceIndex device, Time now) const;
  void shrink(scheduler::DeviceIndex device, size_t contexts);
  void follow_demand(Time now);
  void notify_memory();
  std::optional<Time> next_poll(Time now) const;

  boost::asio::io_context& io_;
  const WorkerCommand command_;
  const PrewarmedDemand::Limits prewarmed_;
  const WorkerPool::Events events_;
  EntryStore* const keeping_;
  ShareTable shares_{share_limits(descriptor_limit())};
  UnreadDescriptors unread_;
  std::vector<DeviceSet> ready_sets_;
  // 0: not known yet.
  size_t devices_ = 0;
  WorkerStarts starts_;
  // At next_poll().
  boost::asio::steady_timer poll_timer_;
  bool starting_later_ = false;
  WorkerStarts::Pool last_number_ = 0;
  struct Numbered {
    WorkerStarts::Pool number = 0;
    PrewarmedDemand demand;
    std::unique_ptr<WorkerPool> pool;
  };
  std::map<Kind, Numbered> pools_;
  PrewarmedMemory* memory_ = nullptr;
  // Contexts, as last reported to the memory.
  std::map<scheduler::DeviceIndex, size_t> notified_;
  // A bound on a device's prewarmed workers for a while, because their memory was requested.
  struct Rest {
    size_t contexts = 0;
    Time until;
  };
  std::map<scheduler::DeviceIndex, Rest> rests_;
  // The reason; empty: open.
  std::string closed_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
