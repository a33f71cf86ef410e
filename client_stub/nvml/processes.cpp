// The processes that use a device. The lists are empty, as inside a container: other tenants' processes are not
// reported, and the driver attributes a session's own work to a process of the server.
#include "client_stub/nvml/local.hpp"
#include "nvml/custom.hpp"

namespace gpuwire::nvml {

int custom::nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned int* count, void*) {
  return put_for(device, 0u, count);
}
int custom::nvmlDeviceGetAccountingPids(nvmlDevice device, unsigned int* count, unsigned int*) {
  return put_for(device, 0u, count);
}
int custom::nvmlDeviceGetEncoderSessions(nvmlDevice device, unsigned int* count, void*) {
  return put_for(device, 0u, count);
}
int custom::nvmlDeviceGetFBCSessions(nvmlDevice device, unsigned int* count, void*) {
  return put_for(device, 0u, count);
}

int custom::nvmlDeviceGetProcessUtilization(nvmlDevice device, void*, unsigned int* count, unsigned long long) {
  int status = put_for(device, 0u, count);
  return status ? status : int(kNotFound);  // as when no process has used the device since then
}

}  // namespace gpuwire::nvml
