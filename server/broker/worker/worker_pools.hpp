// The pools of workers by what they are shown: each set of GPUs that sessions get has one.
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
#include "server/broker/worker/worker_pool.hpp"
#include "server/broker/worker/worker_starts.hpp"

namespace gpuwire::server {

using DeviceSet = std::vector<scheduler::DeviceIndex>;  // ascending; empty: all

// What CUDA_VISIBLE_DEVICES must say for a process that is to see these devices of those that `own`, this process's
// value of the variable (null: it is not set), lets it see.
std::string visible_devices(const DeviceSet& devices, const char* own);

// The broker's thread only. Pools that nobody needs any more go.
class WorkerPools {
 public:
  // `events.ready` and `events.hopeless` come from the pool of workers that see all devices alone.
  WorkerPools(boost::asio::io_context& io, WorkerCommand command, unsigned spares, WorkerPool::Events events,
              EntryStore* keeping = nullptr);

  // One worker that sees all devices; its ready message says how many there are.
  void start();
  void devices_known(size_t devices) { devices_ = devices; }
  // Which sets are kept ready, each with the number of spares; the others' workers are started when they are needed.
  void keep_ready(std::vector<DeviceSet> sets, size_t devices);
  // The pool for the devices of a session that has been admitted.
  WorkerPool& of(const SessionRecord& session);
  void close(const std::string& reason);
  // As WorkerPool's.
  void let_go();

 private:
  struct Kind {
    bool management = false;
    DeviceSet devices;
    auto operator<=>(const Kind&) const = default;
  };
  WorkerPool& pool(const Kind& kind);
  unsigned spares(const Kind& kind) const;
  void drop_idle_later();
  void start_later();
  void start_more();

  boost::asio::io_context& io_;
  const WorkerCommand command_;
  const unsigned spares_;
  const WorkerPool::Events events_;
  EntryStore* const keeping_;
  ShareTable shares_{share_limits(descriptor_limit())};
  UnreadDescriptors unread_;
  std::vector<DeviceSet> ready_sets_;
  size_t devices_ = 0;  // 0: not known yet
  WorkerStarts starts_;
  boost::asio::steady_timer hold_timer_;  // until a start that takes long holds up the others no more
  bool starting_later_ = false;
  WorkerStarts::Pool last_number_ = 0;
  struct Numbered {
    WorkerStarts::Pool number = 0;
    std::unique_ptr<WorkerPool> pool;
  };
  std::map<Kind, Numbered> pools_;
  std::string closed_;  // not empty: why
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
