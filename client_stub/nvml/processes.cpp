// Processes that use a device. What others run is not told, and the driver names a session's own work by a process of
// the server, which means nothing here: the lists are empty, as they are inside a container.
#include "client_stub/nvml/local.hpp"
#include "nvml/hand.hpp"

namespace gpuwire::nvml {

int hand::nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned int* count, void*) {
  return put_for(device, 0u, count);
}
int hand::nvmlDeviceGetAccountingPids(nvmlDevice device, unsigned int* count, unsigned int*) {
  return put_for(device, 0u, count);
}
int hand::nvmlDeviceGetEncoderSessions(nvmlDevice device, unsigned int* count, void*) {
  return put_for(device, 0u, count);
}
int hand::nvmlDeviceGetFBCSessions(nvmlDevice device, unsigned int* count, void*) { return put_for(device, 0u, count); }

int hand::nvmlDeviceGetProcessUtilization(nvmlDevice device, void*, unsigned int* count, unsigned long long) {
  int status = put_for(device, 0u, count);
  return status ? status : int(kNotFound);  // as when no process has used the device since then
}

}  // namespace gpuwire::nvml
