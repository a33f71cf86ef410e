// A memory pool shared between processes: the pool by a file descriptor, each allocation by 64 bytes.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "../descriptors.hpp"
#include "../driver_check.hpp"
#include "../two_processes.hpp"

namespace {

constexpr size_t kWords = 300000;

struct Shared {
  CUmemPoolPtrExportData pointer[2];
};

int importer(int socket) {
  CUdevice device = retain_primary();
  Shared shared;
  int descriptor = receive_descriptor(socket, &shared, sizeof shared);
  CUmemoryPool pool;
  OK(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t(descriptor)),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(descriptor);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemPoolSetAccess(pool, &access, 1));
  CUdeviceptr first, second;
  OK(cuMemPoolImportPointer(&first, pool, &shared.pointer[0]));
  OK(cuMemPoolImportPointer(&second, pool, &shared.pointer[1]));
  std::vector<int> words(kWords);
  OK(cuMemcpyDtoH(words.data(), first, kWords * 4));
  for (int word : words) DEMAND(word == 11);
  OK(cuMemcpyDtoH(words.data(), second, 400));
  for (int i = 0; i < 100; ++i) DEMAND(words[i] == 22);
  OK(cuMemsetD32(first, 33, kWords));
  OK(cuCtxSynchronize());
  // A pool of another process gives no memory of its own.
  CUstream stream;
  CUdeviceptr own;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  DEMAND(cuMemAllocFromPoolAsync(&own, 4096, pool, stream) != CUDA_SUCCESS);
  OK(cuMemFree(first));
  OK(cuMemFree(second));
  OK(cuMemPoolDestroy(pool));
  OK(cuStreamDestroy(stream));
  say(socket);
  return 0;
}

void exporter(int socket) {
  CUdevice device = retain_primary();
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool, ordinary;
  OK(cuMemPoolCreate(&pool, &properties));
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr first, second;
  OK(cuMemAllocFromPoolAsync(&first, kWords * 4, pool, stream));
  OK(cuMemAllocFromPoolAsync(&second, 400, pool, stream));
  OK(cuMemsetD32Async(first, 11, kWords, stream));
  OK(cuMemsetD32Async(second, 22, 100, stream));
  OK(cuStreamSynchronize(stream));
  int descriptor = -1;
  OK(cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  Shared shared;
  OK(cuMemPoolExportPointer(&shared.pointer[0], first));
  OK(cuMemPoolExportPointer(&shared.pointer[1], second));

  // A pool that was not made to be shared.
  int none = -1;
  OK(cuDeviceGetDefaultMemPool(&ordinary, device));
  FAILS(cuMemPoolExportToShareableHandle(&none, ordinary, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);

  send_descriptor(socket, descriptor, &shared, sizeof shared);
  close(descriptor);
  hear(socket);
  std::vector<int> words(kWords);
  OK(cuMemcpyDtoH(words.data(), first, kWords * 4));
  for (int word : words) DEMAND(word == 33);
  OK(cuMemFreeAsync(first, stream));
  OK(cuMemFreeAsync(second, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuStreamDestroy(stream));
  OK(cuMemPoolDestroy(pool));
}

}  // namespace

int main() { return in_two_processes(importer, exporter); }
