// What a fabric that a fuzz target directs gives to one end: rdma_plugin_fuzz.cpp is loaded as any plugin is.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// One message of somebody on the fabric.
struct GpuwireRdmaFuzzMessage {
  uint8_t header[64];
  size_t header_bytes;
  size_t bytes;
  int waits;  // its bytes have to be fetched
};

// What the next end that is made gets, one message at each look, once it is connected. Stays the caller's.
struct GpuwireRdmaFuzzScript {
  const GpuwireRdmaFuzzMessage* messages;
  size_t count;
};

}  // extern "C"

using GpuwireRdmaFuzzDirect = void (*)(const GpuwireRdmaFuzzScript* script);
inline constexpr const char* kGpuwireRdmaFuzzDirect = "gpuwire_rdma_fuzz_direct";
