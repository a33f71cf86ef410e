// The common part of hand-written functions.
#pragma once

#include "client_stub/nvml/connection.hpp"

namespace gpuwire::nvml {

// Returns kSuccess, kUninitialized, or the error of a missing server.
inline int initialised() {
  int status = kSuccess;
  connection(status);
  return status;
}

// Returns the session and sets the device's number. Null: `status` has the reason.
inline std::shared_ptr<Connection> find(nvmlDevice device, uint32_t& index, int& status) {
  auto session = connection(status);
  if (status) return nullptr;
  if (device_index(device, index) && index < session->facts().devices.size()) return session;
  status = kInvalidArgument;
  return nullptr;
}

template <class Value>
int put(Value value, Value* out) {
  if (int status = initialised()) return status;
  if (!out) return kInvalidArgument;
  *out = value;
  return kSuccess;
}

// For a device.
template <class Value>
int put_for(nvmlDevice device, Value value, Value* out) {
  uint32_t index = 0;
  int status = kSuccess;
  if (!find(device, index, status)) return status;
  return put(value, out);
}

}  // namespace gpuwire::nvml
