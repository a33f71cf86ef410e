// The driver of one session, with what stands before it: the ledger, then the gate, then the driver.
#pragma once

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "server/ipc/ipc_message.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/driver_table.hpp"
#include "server/gate/gate.hpp"
#include "server/gate/page/session_page.hpp"
#include "server/ledger/worker/worker_ledger.hpp"

namespace gpuwire::server {

// The gate before a driver, and what it stands on. Does not move: the wrappers know its address.
struct GatedDriver {
  MappedPage page;
  OwnedDescriptor doorbell;
  DriverTable table;
  Gate gate;

  GatedDriver(MappedPage page, OwnedDescriptor doorbell, const DriverTable& behind, unsigned cores);
};

// One in a process. Each part is null when the broker sends no page for it.
//
// A call is charged first and passes the gate then: the ledger may wait for the broker, and whoever waits behind the
// gate is in flight, with the GPU kept for it. What is reserved for a call that stands at the gate is given back when
// the gate refuses it.
struct SessionDriver {
  struct Settings {
    bool software = false;
    unsigned cores = 1;  // how many the process may run on
    int broker = -1;     // the pair on which the ledger asks for more
  };
  std::unique_ptr<GatedDriver> gated;
  std::unique_ptr<WorkerLedger> ledger;

  // `behind` outlives it. The error ends the session: its work would pass unasked, or its memory uncharged.
  static tl::expected<SessionDriver, std::string> open(IpcMessage& message, const SessionSpec& order,
                                                       const DriverTable& behind, const Settings& settings);

  const DriverTable& table(const DriverTable& behind) const {
    return ledger ? ledger->table() : gated ? gated->table : behind;
  }
};

}  // namespace gpuwire::server
