// Functions of the program that run in stream order: the calls.
#include "client/custom.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client::hand {

CUresult cuLaunchHostFunc(const Caller& caller, CUstream stream, CUhostFn function, void* user_data, bool per_thread) {
  HostCallback callback;
  callback.host_function = function;
  callback.stream = stream;
  callback.user_data = user_data;
  return send_host_callback(caller, callback, per_thread);
}

CUresult cuStreamAddCallback(const Caller& caller, CUstream stream, CUstreamCallback function, void* user_data,
                             unsigned int, bool per_thread) {
  HostCallback callback;
  callback.stream_callback = function;
  callback.stream = stream;
  callback.user_data = user_data;
  return send_host_callback(caller, callback, per_thread);
}

}  // namespace gpuwire::client::hand
