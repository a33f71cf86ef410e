// MetricsSource is the interface to the metrics of the GPU scheduler and the ledger.
#pragma once

#include "server/broker/session/session_registry.hpp"
#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

// Called on the broker's thread; must not block.
class MetricsSource {
 public:
  virtual ~MetricsSource() = default;
  // Cached values are too old for the following calls.
  virtual void refresh() {}
  // For a session that has its devices: `figures.devices` has an entry for each. Also once when it has just ended,
  // before its parts release it.
  virtual void add(const SessionRecord& session, SessionMetrics& figures) { (void)session, (void)figures; }
  // Adds the values of tenants and devices. Precondition: the snapshot has every known tenant, with an entry for each
  // device.
  virtual void add(Snapshot& snapshot) { (void)snapshot; }
};

}  // namespace gpuwire::server
