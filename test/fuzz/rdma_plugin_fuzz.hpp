// The script of a fabric that a fuzz target controls: rdma_plugin_fuzz.cpp is loaded like any plug-in.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// One message from any sender on the fabric.
struct GpuwireRdmaFuzzMessage {
  uint8_t header[64];
  size_t header_bytes;
  size_t bytes;
  int waits;  // its bytes have to be fetched
};

// The messages for the next new end, one at each poll after it is connected. The caller keeps the ownership.
struct GpuwireRdmaFuzzScript {
  const GpuwireRdmaFuzzMessage* messages;
  size_t count;
};

}  // extern "C"

using GpuwireRdmaFuzzDirect = void (*)(const GpuwireRdmaFuzzScript* script);
inline constexpr const char* kGpuwireRdmaFuzzDirect = "gpuwire_rdma_fuzz_direct";
