// Memory shared between processes by a file descriptor, which goes from one to the other over a socket; and descriptors
// that are no memory.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "../descriptors.hpp"
#include "../driver_check.hpp"
#include "../two_processes.hpp"

namespace {

constexpr size_t kWords = 1 << 20;  // 4 MiB

CUmemAllocationProp properties(CUdevice device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

CUdeviceptr map(CUmemGenericAllocationHandle handle, CUdevice device) {
  CUdeviceptr address;
  OK(cuMemAddressReserve(&address, kWords * 4, 0, 0, 0));
  OK(cuMemMap(address, kWords * 4, 0, handle, 0));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(address, kWords * 4, &access, 1));
  return address;
}

CUresult import(CUmemGenericAllocationHandle* handle, int descriptor) {
  return cuMemImportFromShareableHandle(handle, reinterpret_cast<void*>(intptr_t(descriptor)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

void misuse(CUdevice device) {
  CUmemGenericAllocationHandle handle, plain;
  int descriptor = -1;
  CUmemAllocationProp wanted = properties(device);
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemCreate(&plain, kWords * 4, &wanted, 0));
  FAILS(cuMemExportToShareableHandle(&descriptor, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(plain));
  int file = open("/proc/self/exe", O_RDONLY);
  DEMAND(import(&handle, file) != CUDA_SUCCESS);
  close(file);
  DEMAND(import(&handle, 777) != CUDA_SUCCESS);
  int pair[2];
  DEMAND(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
  DEMAND(import(&handle, pair[1]) != CUDA_SUCCESS);
  // The contents of a gpuwire descriptor, with a guess in place of its token.
  const char guess[] = "GPUWIRE share 1\nsixteen letters.";
  DEMAND(write(pair[0], guess, sizeof guess - 1) == sizeof guess - 1);
  DEMAND(import(&handle, pair[1]) != CUDA_SUCCESS);
  close(pair[0]);
  close(pair[1]);
}

int importer(int socket) {
  CUdevice device = retain_primary();
  int descriptor = receive_descriptor(socket);
  CUmemGenericAllocationHandle handle, again;
  OK(import(&handle, descriptor));
  OK(import(&again, descriptor));
  OK(cuMemRelease(again));
  close(descriptor);
  CUmemAllocationProp found{};
  OK(cuMemGetAllocationPropertiesFromHandle(&found, handle));
  DEMAND(found.type == CU_MEM_ALLOCATION_TYPE_PINNED && found.location.id == device);
  CUdeviceptr address = map(handle, device);
  OK(cuMemRelease(handle));
  std::vector<int> words(kWords);
  OK(cuMemcpyDtoH(words.data(), address, kWords * 4));
  for (size_t i = 0; i < kWords; ++i) DEMAND(words[i] == 1234);
  OK(cuMemsetD32(address + 4096, 99, 1000));
  OK(cuCtxSynchronize());
  say(socket);
  hear(socket);  // the exporter has unmapped its own and let go of everything by now
  OK(cuMemcpyDtoH(words.data(), address, 4));
  DEMAND(words[0] == 4321);
  OK(cuMemUnmap(address, kWords * 4));
  OK(cuMemAddressFree(address, kWords * 4));
  say(socket);
  return 0;
}

void exporter(int socket) {
  CUdevice device = retain_primary();
  misuse(device);
  CUmemAllocationProp wanted = properties(device);
  size_t granularity = 0;
  OK(cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  DEMAND(granularity > 0 && (kWords * 4) % granularity == 0);
  CUmemGenericAllocationHandle handle, retained;
  OK(cuMemCreate(&handle, kWords * 4, &wanted, 0));
  CUdeviceptr address = map(handle, device);
  OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + 100)));
  DEMAND(retained == handle);
  OK(cuMemRelease(retained));
  unsigned long long flags = 0;
  CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  OK(cuMemGetAccess(&flags, &location, address));
  DEMAND(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemsetD32(address, 1234, kWords));
  OK(cuCtxSynchronize());
  int descriptor = -1;
  OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  DEMAND(descriptor >= 0);
  DEMAND(fcntl(descriptor, F_GETFD) >= 0);
  send_descriptor(socket, descriptor);
  close(descriptor);
  hear(socket);
  std::vector<int> words(kWords);
  OK(cuMemcpyDtoH(words.data(), address, kWords * 4));
  for (size_t i = 0; i < kWords; ++i) DEMAND(words[i] == (i >= 1024 && i < 2024 ? 99 : 1234));
  OK(cuMemsetD32(address, 4321, kWords));
  OK(cuCtxSynchronize());
  OK(cuMemUnmap(address, kWords * 4));
  OK(cuMemAddressFree(address, kWords * 4));
  OK(cuMemRelease(handle));
  say(socket);
  hear(socket);
}

}  // namespace

int main() { return in_two_processes(importer, exporter); }
