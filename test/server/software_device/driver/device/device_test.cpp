#include <cstring>
#include <string>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("Devices are as many as configured, and each has a name, a UUID and a PCI address of its own") {
  int count = 0;
  REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  REQUIRE(count == kDevices);
  CUuuid uuids[kDevices];
  char buses[kDevices][16];
  for (int i = 0; i < kDevices; ++i) {
    CUdevice device = -1;
    char name[64] = {};
    REQUIRE(cuDeviceGet(&device, i) == CUDA_SUCCESS);
    CHECK(cuDeviceGetName(name, sizeof name, device) == CUDA_SUCCESS);
    CHECK(std::string(name) == "gpuwire software device");
    CHECK(cuDeviceGetUuid(&uuids[i], device) == CUDA_SUCCESS);
    CHECK(cuDeviceGetPCIBusId(buses[i], sizeof buses[i], device) == CUDA_SUCCESS);
    CUdevice found = -1;
    CHECK(cuDeviceGetByPCIBusId(&found, buses[i]) == CUDA_SUCCESS);
    CHECK(found == device);
    size_t bytes = 0;
    CHECK(cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS);
    CHECK(bytes == kMemoryBytes);
  }
  CHECK(std::memcmp(&uuids[0], &uuids[1], sizeof uuids[0]) != 0);
  CHECK(std::string(buses[0]) != buses[1]);
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, kDevices) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuDeviceGet(&device, -1) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("Every attribute of CUDA 13.0 has a value, and no other") {
  const auto attribute = [](int number, int device = 0) {
    int value = -12345;
    const CUresult result = cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(number), device);
    return std::pair(result, value);
  };
  for (int i = 1; i < 148; ++i) {
    CAPTURE(i);
    CHECK(attribute(i).first == CUDA_SUCCESS);
    CHECK(attribute(i).second != -12345);
  }
  CHECK(attribute(0).first == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(148).first == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(-1).first == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).second == 9);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).second == 0);
  CHECK(attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0).second != attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1).second);
}

TEST_CASE("Versions and error texts are the driver's") {
  int version = 0;
  CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
  CHECK(version == 13000);
  const char* text = nullptr;
  CHECK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(cuGetErrorString(CUDA_ERROR_NOT_READY, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "device not ready");
  CHECK(cuGetErrorName(static_cast<CUresult>(12345), &text) == CUDA_ERROR_INVALID_VALUE);
  CHECK(text == nullptr);
  CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("What is not offered says so") {
  CUipcMemHandle handle;
  CHECK(cuIpcGetMemHandle(&handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
}
