// A process over a fake session with a current primary context on device 0.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>

#include "client/custom.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/lifecycle.hpp"
#include "client_stub/driver/process/process.hpp"
#include "test/client_stub/driver/session_parts.hpp"
#include "test/support/fake_session.hpp"

namespace gpuwire::test {

inline client::ServerFacts small_device_facts(int devices = 1) {
  client::ServerFacts facts = fake_facts(devices);
  for (client::DeviceFacts& device : facts.devices) {
    auto& attributes = device.attributes;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 0x7fffffff;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535;
    attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32;
    attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT] = 4;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048;
    attributes[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1;
    attributes[CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED] = 1;
    attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 100 * 1024;
    attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 7;
    attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR] = 5;
  }
  return facts;
}

struct DeviceProcess {
  // `cached_memory`: GPUWIRE_KEPT_MEMORY; freed memory is released at once unless a test is about the cache.
  // `prefetch`: GPUWIRE_LOOK_AHEAD; "off", so that the tests do not use their user's folder.
  explicit DeviceProcess(int devices = 1, const char* cached_memory = "0", const char* prefetch = "off") {
    setenv("GPUWIRE_KEPT_MEMORY", cached_memory, 1);
    setenv("GPUWIRE_LOOK_AHEAD", prefetch, 1);
    auto made = std::make_unique<FakeSession>(small_device_facts(devices));
    session = made.get();
    REQUIRE(client::install_process(std::move(made), nullptr) == CUDA_SUCCESS);
    make_current(0);
  }
  ~DeviceProcess() {
    client::address_map().take_all([](const client::AddressRange&) { return true; }, client::release_range);
    if (client::ThreadState* thread = client::thread_state()) *thread = client::ThreadState{};
    client::t_context = nullptr;
    client::uninstall_process_for_test();
  }
  DeviceProcess(const DeviceProcess&) = delete;

  void make_current(CUdevice device) {
    CUcontext context = nullptr;
    REQUIRE(client::custom::cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    REQUIRE(client::custom::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }

  FakeSession* session;
};

// Ordinals of protocol/api/.
inline constexpr uint32_t kMemAlloc = 1800, kMemFree = 1803, kMemcpyDtoD = 2100, kFuncSetAttribute = 1501,
                          kKernelGetFunction = 1401, kOccupancyWithFlags = 1701;

inline uint32_t ordinal(wire::SessionOrdinal value) { return uint32_t(value); }

}  // namespace gpuwire::test
