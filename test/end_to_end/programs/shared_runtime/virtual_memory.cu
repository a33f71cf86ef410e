// Memory reserved, created, mapped and unmapped separately: a buffer that grows in place, one piece of memory at two
// addresses, and access taken away.
#include <cuda.h>

#include "../../../support/cuda_check.hpp"

namespace {

__global__ void fill(unsigned* data, unsigned value, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    data[i] = value + unsigned(i);
}

CUmemAllocationProp on_the_device() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return properties;
}

void allow(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  access.flags = flags;
  CHECK_DRIVER(cuMemSetAccess(address, bytes, &access, 1));
}

std::vector<unsigned> read(CUdeviceptr address, size_t bytes) {
  std::vector<unsigned> host(bytes / sizeof(unsigned));
  CHECK_DRIVER(cuMemcpyDtoH(host.data(), address, bytes));
  return host;
}

void grows_in_place(size_t granularity) {
  constexpr int kPieces = 4;
  const auto properties = on_the_device();
  CUdeviceptr base;
  CHECK_DRIVER(cuMemAddressReserve(&base, kPieces * granularity, 0, 0, 0));
  CUmemGenericAllocationHandle pieces[kPieces];
  const size_t words = granularity / sizeof(unsigned);
  for (int i = 0; i < kPieces; ++i) {
    CHECK_DRIVER(cuMemCreate(&pieces[i], granularity, &properties, 0));
    CHECK_DRIVER(cuMemMap(base + i * granularity, granularity, 0, pieces[i], 0));
    allow(base + i * granularity, granularity);
    fill<<<64, 256>>>(reinterpret_cast<unsigned*>(base + i * granularity), i * 1000, words);
  }
  CHECK_RUNTIME(cudaDeviceSynchronize());
  const auto host = read(base, kPieces * granularity);  // one copy over all pieces
  for (size_t i = 0; i < host.size(); ++i) EXPECT(host[i] == unsigned(i / words) * 1000 + unsigned(i % words));
  unsigned long long flags = 0;
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CHECK_DRIVER(cuMemGetAccess(&flags, &location, base));
  EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle again;
  CHECK_DRIVER(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base)));
  CHECK_DRIVER(cuMemRelease(again));
  CHECK_DRIVER(cuMemUnmap(base, kPieces * granularity));
  for (auto piece : pieces) CHECK_DRIVER(cuMemRelease(piece));
  CHECK_DRIVER(cuMemAddressFree(base, kPieces * granularity));
}

void two_addresses(size_t granularity) {
  const auto properties = on_the_device();
  CUmemGenericAllocationHandle memory;
  CUdeviceptr first, second;
  CHECK_DRIVER(cuMemCreate(&memory, granularity, &properties, 0));
  CHECK_DRIVER(cuMemAddressReserve(&first, granularity, 0, 0, 0));
  CHECK_DRIVER(cuMemAddressReserve(&second, granularity, 0, 0, 0));
  for (CUdeviceptr address : {first, second}) {
    CHECK_DRIVER(cuMemMap(address, granularity, 0, memory, 0));
    allow(address, granularity);
  }
  CHECK_DRIVER(cuMemRelease(memory));  // the mappings keep it
  fill<<<64, 256>>>(reinterpret_cast<unsigned*>(first), 5, granularity / sizeof(unsigned));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  const auto host = read(second, granularity);
  for (size_t i = 0; i < host.size(); ++i) EXPECT(host[i] == 5 + i);
  CHECK_DRIVER(cuMemUnmap(first, granularity));
  EXPECT(read(second, granularity) == host);
  CHECK_DRIVER(cuMemUnmap(second, granularity));
  CHECK_DRIVER(cuMemAddressFree(first, granularity));
  CHECK_DRIVER(cuMemAddressFree(second, granularity));
}

// Whether the address has one for kernels; cuMemGetAddressRange must answer alike.
bool has_device_address(CUdeviceptr address, size_t granularity) {
  CUdeviceptr pointer = 0, base = 0;
  size_t bytes = 0;
  const CUresult attribute = cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 12);
  const CUresult range = cuMemGetAddressRange(&base, &bytes, address + 12);
  if (attribute == CUDA_SUCCESS) {
    EXPECT(pointer == address + 12);
    EXPECT(range == CUDA_SUCCESS && base == address && bytes == granularity);
    return true;
  }
  EXPECT(attribute == CUDA_ERROR_INVALID_VALUE);
  EXPECT(range == CUDA_ERROR_NOT_FOUND);
  return false;
}

void access_is_given_and_taken(size_t granularity) {
  const auto properties = on_the_device();
  CUmemGenericAllocationHandle memory;
  CUdeviceptr address;
  CHECK_DRIVER(cuMemCreate(&memory, granularity, &properties, 0));
  CHECK_DRIVER(cuMemAddressReserve(&address, granularity, 0, 0, 0));
  CHECK_DRIVER(cuMemMap(address, granularity, 0, memory, 0));
  EXPECT(!has_device_address(address, granularity));
  allow(address, granularity);
  EXPECT(has_device_address(address, granularity));
  allow(address, granularity, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT(!has_device_address(address, granularity));
  CHECK_DRIVER(cuMemUnmap(address, granularity));
  CHECK_DRIVER(cuMemRelease(memory));
  CHECK_DRIVER(cuMemAddressFree(address, granularity));
}

void refusals(size_t granularity) {
  const auto properties = on_the_device();
  CUmemGenericAllocationHandle memory;
  EXPECT(cuMemCreate(&memory, granularity + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(cuMemCreate(&memory, size_t(1) << 50, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
}

}  // namespace

int main() {
  CHECK_RUNTIME(cudaFree(nullptr));
  const auto properties = on_the_device();
  size_t granularity = 0;
  CHECK_DRIVER(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT(granularity > 0);
  grows_in_place(granularity);
  two_addresses(granularity);
  access_is_given_and_taken(granularity);
  refusals(granularity);
  std::printf("PASSED\n");
  return 0;
}
