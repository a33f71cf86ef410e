// Event sets. Devices report no supported events (nvmlDeviceGetSupportedEventTypes), and a wait for an event ends with
// its timeout.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "client_stub/nvml/local.hpp"
#include "nvml/custom.hpp"

namespace gpuwire::nvml {

namespace {

// A set is only a number.
std::atomic<uintptr_t> g_sets{0};  // relaxed: only makes numbers differ

bool is_set(void* set) {
  auto number = reinterpret_cast<uintptr_t>(set);
  return number != 0 && number <= g_sets.load(std::memory_order_relaxed);
}

}  // namespace

int custom::nvmlEventSetCreate(void* out) {
  if (int status = initialised()) return status;
  if (!out) return kInvalidArgument;
  *static_cast<uintptr_t*>(out) = g_sets.fetch_add(1, std::memory_order_relaxed) + 1;
  return kSuccess;
}

int custom::nvmlEventSetFree(void* set) {
  if (int status = initialised()) return status;
  return is_set(set) ? kSuccess : kInvalidArgument;
}

int custom::nvmlDeviceGetSupportedEventTypes(nvmlDevice device, unsigned long long* types) {
  return put_for(device, 0ull, types);
}

int custom::nvmlDeviceRegisterEvents(nvmlDevice device, unsigned long long types, void* set) {
  uint32_t index = 0;
  int status = kSuccess;
  if (!find(device, index, status)) return status;
  if (!is_set(set)) return kInvalidArgument;
  return types == 0 ? kSuccess : kNotSupported;
}

int custom::nvmlEventSetWait_v2(void* set, void* data, unsigned int timeout_ms) {
  if (int status = initialised()) return status;
  if (!is_set(set) || !data) return kInvalidArgument;
  ::poll(nullptr, 0, int(std::min(timeout_ms, unsigned(INT_MAX))));
  return kTimeout;
}

}  // namespace gpuwire::nvml
