// The driver of one session: the library, and the layers before it in a stated order.
#pragma once

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "server/driver/evictable/evictable_memory.hpp"
#include "server/driver/ipc_guard.hpp"
#include "server/driver_table.hpp"
#include "server/gate/gate.hpp"
#include "server/gate/page/session_page.hpp"
#include "server/ipc/blocking_requests.hpp"
#include "server/ipc/message.hpp"
#include "server/ledger/worker/worker_ledger.hpp"
#include "server/profiler/gpu_profiler.hpp"
#include "server/replay/copy/upload_order.hpp"

namespace gpuwire::server {

// The gate before a driver, and its dependencies. The object cannot move, because the wrappers store its address.
struct GatedDriver {
  SharedPage<SessionPage> page;
  OwnedDescriptor doorbell;
  DriverTable table;
  Gate gate;

  GatedDriver(SharedPage<SessionPage> page, OwnedDescriptor doorbell, const DriverTable& behind, unsigned cores);
};

// One in a process. A call passes, in this order,
//
//   1. the order of uploads: a stream waits for copies that the program takes for done, before it is given work;
//   2. the IPC guard: a handle that is not the tenant's is refused before anything is charged for it;
//   3. the ledger:    what the call takes is charged, before the GPU is asked for;
//   4. the gate:      the GPU's time;
//   5. the profiler:  how long work takes on the GPU, without its wait at the gate; only where a client has asked for
//   it;
//   6. the evictable memory: large allocations in virtual memory, which a suspension moves; only where the broker says
//   so;
//   7. the library.
//
// Guard and ledger may wait for the broker, so they come before the gate: a call that has passed the gate counts as in
// flight, and the GPU is reserved for it. If the gate refuses a call, the memory that the ledger has reserved for it is
// returned. Ledger and gate are missing if the broker has sent no page for them. No other code composes the layers; a
// test checks the order.
class DriverStack {
 public:
  struct Settings {
    bool software = false;
    unsigned cores = 1;               // how many the process may run on
    std::string cupti = cupti::kOff;  // the method of measuring a profile (GpuProfiler::Settings)
    // The ledger requests more memory over these; they outlive the stack.
    ipc::Channel& broker;
    ipc::BlockingRequests& requests;
  };
  // `library`, `order` and `guard` outlive the stack. Duplicates the descriptors. An error ends the session, because
  // its work would bypass the gate, or its memory would not be charged.
  static tl::expected<DriverStack, std::string> open(ipc::SessionDescriptors& descriptors, const SessionSpec& spec,
                                                     const DriverTable& library, UploadOrder& order, IpcGuard& guard,
                                                     const Settings& settings);

  const DriverTable& table() const { return *table_; }
  // Null: there is none.
  GatedDriver* gated() const { return gated_.get(); }
  WorkerLedger* ledger() const { return ledger_.get(); }
  EvictableMemory* evictable() const { return evictable_.get(); }
  // Null: there is no driver.
  GpuProfiler* profiler() const { return profiler_.get(); }

 private:
  std::unique_ptr<EvictableMemory> evictable_;
  std::unique_ptr<DriverTable> evictable_table_;
  std::unique_ptr<DriverTable> behind_gate_;  // the library's table, in which the profiler may be inserted
  std::unique_ptr<GatedDriver> gated_;
  std::unique_ptr<WorkerLedger> ledger_;
  std::unique_ptr<DriverTable> table_;
  std::unique_ptr<GpuProfiler> profiler_;
};

}  // namespace gpuwire::server
