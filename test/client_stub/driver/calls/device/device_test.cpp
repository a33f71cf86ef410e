#include <cstring>
#include <string>

#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/device/visible_devices.hpp"
#include "schema/api_device.capnp.h"
#include "test/client_stub/driver/fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::client;
using test::FakeProcess;

TEST_CASE("CUDA_VISIBLE_DEVICES chooses and orders devices by number and by UUID") {
  std::vector<DeviceFacts> devices = test::fake_facts(4).devices;
  using List = std::vector<int>;
  CHECK(visible_devices(nullptr, devices) == List{0, 1, 2, 3});
  CHECK(visible_devices("", devices) == List{});
  CHECK(visible_devices("2", devices) == List{2});
  CHECK(visible_devices("3,0", devices) == List{3, 0});
  CHECK(visible_devices(" 1 , 2 ", devices) == List{1, 2});
  CHECK(visible_devices("-1", devices) == List{});
  CHECK(visible_devices("0,-1,1", devices) == List{0});
  CHECK(visible_devices("1,7,2", devices) == List{1});
  CHECK(visible_devices("1,1", devices) == tl::unexpected(CUDA_ERROR_INVALID_DEVICE));
  CHECK(visible_devices("1,GPU-10,2", devices) == tl::unexpected(CUDA_ERROR_INVALID_DEVICE));
  CHECK(visible_devices("1,7,1", devices) == List{1});
  CHECK(visible_devices("GPU-20", devices) == List{2});
  CHECK(visible_devices("gpu-10111213-1415-1617-1819-1a1b1c1d1e1f,0", devices) == List{1, 0});
  CHECK(visible_devices("GPU-", devices) == List{});
  CHECK(visible_devices("GPU-", test::fake_facts(1).devices) == List{});
  CHECK(visible_devices("GPU-ff", devices) == List{});
  CHECK(visible_devices("MIG-1", devices) == List{});
  CHECK(visible_devices("0x", devices) == List{0});
  CHECK(visible_devices("2nd,0", devices) == List{2, 0});
  CHECK(visible_devices("x,0", devices) == List{});
}

TEST_CASE("a program that may see no device is told that there is none") {
  auto session = std::make_unique<test::FakeSession>(test::fake_facts(2));
  CHECK(install_process(std::move(session), "-1") == CUDA_ERROR_NO_DEVICE);
  CHECK(process() == nullptr);
}

TEST_CASE("a device that the program names twice is an error of cuInit") {
  auto session = std::make_unique<test::FakeSession>(test::fake_facts(2));
  CHECK(install_process(std::move(session), "0,0") == CUDA_ERROR_INVALID_DEVICE);
  CHECK(process() == nullptr);
}

TEST_CASE("a device does not offer what only a device in the program's own machine can do") {
  FakeProcess fake(1, "0");
  for (auto attribute :
       {CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED}) {
    int value = -1;
    CHECK(custom::cuDeviceGetAttribute(&value, attribute, 0) == CUDA_SUCCESS);
    CHECK(value == 0);
  }
  for (auto attribute :
       {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM}) {
    int value = -1;
    CHECK(custom::cuDeviceGetAttribute(&value, attribute, 0) == CUDA_SUCCESS);
    CHECK(value == attribute);
  }
}

TEST_CASE("no atomic operation reaches the host, whatever the server's device can do with its own") {
  constexpr uint32_t kHostAtomicCapabilities = 1101;  // protocol/api/device.toml
  FakeProcess fake(1, "0");
  fake.session->answer(kHostAtomicCapabilities, [](capnp::MessageBuilder& reply) {
    const unsigned able[2] = {CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_SCALAR_32, ~0u};
    auto results = reply.initRoot<schema::CuDeviceGetHostAtomicCapabilitiesResults>();
    results.setCapabilities(kj::ArrayPtr(reinterpret_cast<const kj::byte*>(able), sizeof able));
  });
  const CUatomicOperation operations[2] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_EXCHANGE};
  unsigned capabilities[3] = {7, 7, 7};
  CHECK(custom::cuDeviceGetHostAtomicCapabilities(capabilities, operations, 2, 0) == CUDA_SUCCESS);
  CHECK((capabilities[0] == 0 && capabilities[1] == 0 && capabilities[2] == 7));
  // The server's driver judges a query's arguments.
  fake.session->answer(kHostAtomicCapabilities, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuDeviceGetHostAtomicCapabilitiesResults>().setResult(CUDA_ERROR_INVALID_VALUE);
  });
  CHECK(custom::cuDeviceGetHostAtomicCapabilities(capabilities, operations, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("devices are answered from what the server told, in the program's order") {
  FakeProcess fake(3, "2,0");
  int count = 0;
  CHECK(custom::cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 2);
  CUdevice device = -1;
  CHECK(custom::cuDeviceGet(&device, 1) == CUDA_SUCCESS);
  CHECK(device == 1);
  CHECK(custom::cuDeviceGet(&device, 2) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(custom::cuDeviceGet(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
  char name[64];
  CHECK(custom::cuDeviceGetName(name, sizeof name, 0) == CUDA_SUCCESS);
  CHECK(std::string(name) == "Fake device 2");
  CHECK(custom::cuDeviceGetName(name, 5, 0) == CUDA_SUCCESS);
  CHECK(std::string(name) == "Fake");
  CHECK(custom::cuDeviceGetName(name, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CUuuid uuid;
  CHECK(custom::cuDeviceGetUuid(&uuid, 0) == CUDA_SUCCESS);
  CHECK(uuid.bytes[0] == 32);
  size_t bytes = 0;
  CHECK(custom::cuDeviceTotalMem_v2(&bytes, 1) == CUDA_SUCCESS);
  CHECK(bytes == 1ull << 30);
  int value = 0;
  CHECK(custom::cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0) == CUDA_SUCCESS);
  CHECK(value == 2000 + CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  CHECK(custom::cuDeviceGetAttribute(&value, CUdevice_attribute(0), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuDeviceGetAttribute(&value, CUdevice_attribute(148), 0) == CUDA_ERROR_INVALID_VALUE);
  int major = 0, minor = 0;
  CHECK(custom::cuDeviceComputeCapability(&major, &minor, 1) == CUDA_SUCCESS);
  CHECK(major == 75);
  CHECK(minor == 76);
  CUdevprop properties;
  CHECK(custom::cuDeviceGetProperties(&properties, 1) == CUDA_SUCCESS);
  CHECK(properties.SIMDWidth == 10);
  int can = -1;
  CHECK(custom::cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
  CHECK(can == 1);
  CHECK(custom::cuDeviceCanAccessPeer(&can, 0, 0) == CUDA_SUCCESS);
  CHECK(can == 0);
  CHECK(fake.session->total() == 0);
  CUresult error;
  CHECK(server_device(0, error) == 2);
  CHECK(server_device(1, error) == 0);
  server_device(2, error);
  CHECK(error == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("devices are found by their PCI address in all its spellings") {
  FakeProcess fake(2);
  char text[32];
  CHECK(custom::cuDeviceGetPCIBusId(text, sizeof text, 1) == CUDA_SUCCESS);
  CHECK(std::string(text) == "0000:07:00.0");
  CUdevice device = -1;
  for (const char* spelling : {"0000:07:00.0", "07:00.0", "0000:07:00", "7:0"}) {
    device = -1;
    CHECK(custom::cuDeviceGetByPCIBusId(&device, spelling) == CUDA_SUCCESS);
    CHECK(device == 1);
  }
  CHECK(custom::cuDeviceGetByPCIBusId(&device, "0000:09:00.0") == CUDA_ERROR_INVALID_DEVICE);
  for (const char* nonsense : {"", "x", "1:", "1:2:3:4", "07:00.0.0", "07"}) {
    CHECK(custom::cuDeviceGetByPCIBusId(&device, nonsense) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("every error has the driver's name and text") {
  const char* text = nullptr;
  CHECK(custom::cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(custom::cuGetErrorString(CUDA_SUCCESS, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "no error");
  CHECK(custom::cuGetErrorString(CUDA_ERROR_UNKNOWN, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "unknown error");
  CHECK(custom::cuGetErrorName(CUresult(4711), &text) == CUDA_ERROR_INVALID_VALUE);
  CHECK(text == nullptr);
  CHECK(custom::cuGetErrorName(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
}
