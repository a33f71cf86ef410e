// "upload_order WAY [large]": the data of a blocking copy are on the device when it has returned, for every reader:
// while the NULL stream is still busy with work before the copy, the program makes a reader that does not wait for the
// NULL stream. The program has changed the source by then. Natively a large copy waits for the stream, a small one does
// not (CUDA programming guide, "Asynchronous concurrent execution").
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "../descriptors.hpp"
#include "../driver_check.hpp"

__global__ void busy(long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
}
__global__ void take(const int* in, int* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = in[i];
}

namespace {

constexpr int kSmallCount = 2000, kLargeCount = 260'000;  // 8 KB and 1 MB
constexpr long long kBusyCycles = 2'000'000'000;          // a second or so

std::vector<int> g_values;  // what is copied
CUdeviceptr g_data = 0, g_taken = 0;
CUcontext g_context = nullptr;

size_t data_bytes() { return g_values.size() * sizeof(int); }

// A kernel that runs for long in the NULL stream, and the copy behind it.
void upload() {
  std::vector<int> source = g_values;
  busy<<<1, 1>>>(kBusyCycles);
  OK(cuMemcpyHtoD(g_data, source.data(), data_bytes()));
  std::fill(source.begin(), source.end(), -1);
}
void upload_rows() {
  std::vector<int> source = g_values;
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = source.data();
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = g_data;
  box.srcPitch = box.dstPitch = box.WidthInBytes = data_bytes() / 10;
  box.Height = 10;
  busy<<<1, 1>>>(kBusyCycles);
  OK(cuMemcpy2D(&box));
  std::fill(source.begin(), source.end(), -1);
}

void look_in(CUstream stream) {
  std::vector<int> seen(g_values.size());
  take<<<1, 128, 0, stream>>>(reinterpret_cast<int*>(g_data), reinterpret_cast<int*>(g_taken), int(g_values.size()));
  OK(cuMemcpyDtoHAsync(seen.data(), g_taken, data_bytes(), stream));
  OK(cuStreamSynchronize(stream));
  DEMAND(seen == g_values);
}

void a_stream() {
  upload();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  look_in(stream);
}
void a_stream_behind_rows() {
  upload_rows();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  look_in(stream);
}
void a_stream_with_priority() {
  upload();
  CUstream stream;
  OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
  look_in(stream);
}
// A thread makes the copy; another thread has made the stream before.
void a_stream_that_is_there() {
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  upload();
  look_in(stream);
}
// Nothing else is under way, so the wait is over as soon as the program may change the source.
void a_stream_behind_a_wait() {
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<int> source = g_values;
    OK(cuMemsetD8(g_data, 0, data_bytes()));
    OK(cuCtxSynchronize());
    OK(cuMemcpyHtoDAsync(g_data, source.data(), data_bytes(), nullptr));
    OK(cuStreamSynchronize(nullptr));
    std::fill(source.begin(), source.end(), -1);
    look_in(stream);
  }
}
void a_green_context() {
  CUdevResource all{};
  CUdevResourceDesc descriptor;
  CUgreenCtx green;
  CUstream stream;
  OK(cuCtxGetDevResource(g_context, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevResourceGenerateDesc(&descriptor, &all, 1));
  upload();
  OK(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  look_in(stream);
}
void a_context() {
  upload();
  CUcontext other;
  std::vector<int> seen(g_values.size());
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuMemcpyDtoH(seen.data(), g_data, data_bytes()));
  DEMAND(seen == g_values);
}

constexpr size_t kSharedBytes = 2u << 20;  // a multiple of every granularity

CUdeviceptr map(CUmemGenericAllocationHandle memory) {
  CUdeviceptr address;
  OK(cuMemAddressReserve(&address, kSharedBytes, 0, 0, 0));
  OK(cuMemMap(address, kSharedBytes, 0, memory, 0));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(address, kSharedBytes, &access, 1));
  return address;
}

int in_other_process(int socket) {
  int descriptor = receive_descriptor(socket);
  retain_primary();
  CUmemGenericAllocationHandle memory;
  std::vector<int> seen(g_values.size());
  auto shared = reinterpret_cast<void*>(intptr_t(descriptor));
  OK(cuMemImportFromShareableHandle(&memory, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  OK(cuMemcpyDtoH(seen.data(), map(memory), data_bytes()));
  DEMAND(seen == g_values);
  return 0;
}

int g_socket = -1;
pid_t g_child = 0;

void a_process() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle memory;
  OK(cuMemCreate(&memory, kSharedBytes, &wanted, 0));
  g_data = map(memory);
  upload();
  int descriptor, status = 1;
  OK(cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_descriptor(g_socket, descriptor);
  DEMAND(waitpid(g_child, &status, 0) == g_child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

const std::map<std::string, std::function<void()>> kWays = {
    {"stream", a_stream},
    {"rows", a_stream_behind_rows},
    {"earlier", a_stream_that_is_there},
    {"waited", a_stream_behind_a_wait},
    {"priority", a_stream_with_priority},
    {"green", a_green_context},
    {"context", a_context},
    {"process", a_process},
};

}  // namespace

int main(int argc, char** argv) {
  const bool large = argc == 3 && std::string(argv[2]) == "large";
  auto way = kWays.find(argc == 2 || large ? argv[1] : "");
  if (way == kWays.end()) {
    std::printf("usage: upload_order WAY [large], one of:");
    for (auto& [name, _] : kWays) std::printf(" %s", name.c_str());
    std::printf("\n");
    return 2;
  }
  g_values.resize(large ? kLargeCount : kSmallCount);
  std::iota(g_values.begin(), g_values.end(), 1);
  if (way->first == "process") {  // before there is a driver in this one
    int sockets[2];
    DEMAND(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    g_child = fork();
    if (g_child == 0) return in_other_process(sockets[1]);
    g_socket = sockets[0];
  }
  retain_primary();
  OK(cuCtxGetCurrent(&g_context));
  OK(cuMemAlloc(&g_data, data_bytes()));
  OK(cuMemAlloc(&g_taken, data_bytes()));
  OK(cuMemsetD8(g_data, 0, data_bytes()));
  busy<<<1, 1>>>(1);
  take<<<1, 1>>>(nullptr, nullptr, 0);
  OK(cuCtxSynchronize());
  way->second();
  std::printf("PASSED\n");
  return 0;
}
