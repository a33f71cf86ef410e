// The pools of workers by their visible devices: each set of GPUs of sessions has one.
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

// The value of CUDA_VISIBLE_DEVICES for a process that has to see these devices, out of those that `own`, this
// process's value of the variable (null: it is not set), lets it see.
std::string visible_devices(const DeviceSet& devices, const char* own);

// The broker's thread only. Pools that nobody needs any more go.
//
// The number of spares follows PrewarmedDemand, as far as the GPU's memory has room for their contexts: the context of
// a worker that is ready is on the first of its devices.
class WorkerPools final : public PrewarmedContexts {
 public:
  // `events.ready` and `events.hopeless` come from the pool of workers that see all devices alone.
  WorkerPools(boost::asio::io_context& io, WorkerCommand command, PrewarmedDemand::Limits prewarmed,
              WorkerPool::Events events, EntryStore* keeping = nullptr);
  // Outlives the calls; without one there is room for all.
  void set_memory(PrewarmedMemory& memory) { memory_ = &memory; }

  // One worker that sees all devices; its ready message says how many there are.
  void start();
  // As start(), for devices that may be others by now: workers that have started before have seen the old ones, and
  // end.
  void start_anew();
  void devices_known(size_t devices) { devices_ = devices; }
  // Which sets are kept ready, each with its spares; the others' workers are started when they are needed.
  void keep_ready(std::vector<DeviceSet> sets, size_t devices);
  // The pool for the devices of a session that has been admitted.
  WorkerPool& of(const SessionRecord& session);
  void close(const std::string& reason);
  // As WorkerPool's.
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
  size_t devices_ = 0;  // 0: not known yet
  WorkerStarts starts_;
  boost::asio::steady_timer poll_timer_;  // at next_poll()
  bool starting_later_ = false;
  WorkerStarts::Pool last_number_ = 0;
  struct Numbered {
    WorkerStarts::Pool number = 0;
    PrewarmedDemand demand;
    std::unique_ptr<WorkerPool> pool;
  };
  std::map<Kind, Numbered> pools_;
  PrewarmedMemory* memory_ = nullptr;
  std::map<scheduler::DeviceIndex, size_t> notified_;  // contexts, as last reported to the memory
  // Of devices whose memory was asked for.
  struct Rest {
    size_t contexts = 0;
    Time until;
  };
  std::map<scheduler::DeviceIndex, Rest> rests_;
  std::string closed_;  // not empty: why
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
