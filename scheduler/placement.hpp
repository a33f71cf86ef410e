// Which GPUs a session gets, and who waits for them in which order. Pure logic; the broker asks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

struct PlacementRequest {
  SessionId session{};
  TenantId tenant{};
  ServiceClass service_class = ServiceClass::batch;
  unsigned gpus = 1;
  uint64_t memory_bytes = 0;               // wanted free on each of them at the start; 0: whatever there is
  std::vector<DeviceIndex> allowed;        // empty: all
  unsigned tenant_sessions_max = 0;        // 0: no bound
  uint64_t tenant_limit_bytes = 0;         // per GPU; 0: no bound
};

struct Placed { std::vector<DeviceIndex> devices; };
struct Queued { size_t place = 1; size_t waiting = 1; std::string why; };  // place counts from 1
struct NeverFits { std::string reason; };                                  // one line for the client
using PlacementAnswer = std::variant<Placed, Queued, NeverFits>;

class Placement {
 public:
  struct Device {
    uint64_t bytes = 0;             // what the ledger may give out on it
    unsigned sessions_max = 0;      // 0: no bound
  };
  explicit Placement(std::vector<Device> devices);
  ~Placement();

  // How much memory could be reserved on the device for this tenant now.
  using FreeBytes = std::function<uint64_t(TenantId, DeviceIndex)>;
  void set_free_bytes(FreeBytes free_bytes);

  // Least loaded devices that fit, or a place in the queue (class first, then arrival), or the reason why it could never be served.
  PlacementAnswer ask(const PlacementRequest& request);
  // Who may start now, in order: call it after leave(), cancel(), memory given back, and reloads.
  std::vector<std::pair<SessionId, Placed>> start_waiting();
  std::vector<std::pair<SessionId, Queued>> waiting() const;

  void cancel(SessionId waiting);
  void leave(SessionId running);

  std::string check() const;        // for tests: empty, or the invariant that does not hold

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpuwire::scheduler
