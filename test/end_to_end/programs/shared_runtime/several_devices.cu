// Works on every visible device, passes data round between them all the time, and checks the results.
//   several_devices steps N [ITERATIONS]    N rounds: kernels on each device, then a copy from each to the next
//   several_devices until [ITERATIONS]      until standard input closes; each byte on it asks for "count ROUNDS"
// ITERATIONS make a kernel long. Two rounds are always queued. Prints "device UUID BYTES" for each, "working" when a
// round has been right, and at the end "done ROUNDS" and PASSED.
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 1024, kThreads = 64, kKernels = 4;
constexpr size_t kLargeCount = 1 << 20, kLargeBytes = kLargeCount * sizeof(unsigned);
constexpr unsigned kReadCount = 1 << 14;

__global__ void step(unsigned* data, unsigned long long* count, unsigned iterations) {
  float x = threadIdx.x;
  for (unsigned i = 0; i < iterations; ++i) x = x * 0.999f + 0.5f;
  if (x == 12345.678f) *count = 0;
  for (unsigned i = threadIdx.x; i < kCount; i += blockDim.x) data[i] = data[i] * 3 + 1;
  if (threadIdx.x == 0) atomicAdd(count, 1ull);
}

__global__ void add(unsigned* to, const unsigned* from, unsigned count) {
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) to[i] += from[i];
}

struct Device {
  cudaStream_t stream;
  unsigned *data, *inbox;
  unsigned long long* count;
  cudaEvent_t computed, sent, round[2];
};

class Ring {
 public:
  explicit Ring(unsigned iterations) : iterations_(iterations) {
    int count = 0;
    CHECK_RUNTIME(cudaGetDeviceCount(&count));
    for (int number = 0; number < count; ++number) {
      print(number);
      CHECK_RUNTIME(cudaSetDevice(number));
      Device device{};
      CHECK_RUNTIME(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
      for (cudaEvent_t* event : {&device.computed, &device.sent, &device.round[0], &device.round[1]})
        CHECK_RUNTIME(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
      CHECK_RUNTIME(cudaMalloc(&device.data, kCount * sizeof(unsigned)));
      CHECK_RUNTIME(cudaMalloc(&device.inbox, kCount * sizeof(unsigned)));
      CHECK_RUNTIME(cudaMalloc(&device.count, sizeof *device.count));
      CHECK_RUNTIME(cudaMemset(device.count, 0, sizeof *device.count));
      std::vector<unsigned> values(kCount);
      for (unsigned i = 0; i < kCount; ++i) values[i] = i * 2654435769u + unsigned(number);
      CHECK_RUNTIME(cudaMemcpy(device.data, values.data(), kCount * sizeof(unsigned), cudaMemcpyHostToDevice));
      CHECK_RUNTIME(cudaDeviceSynchronize());
      devices_.push_back(device);
      expected_.push_back(std::move(values));
    }
  }

  unsigned rounds() const { return rounds_; }

  void round() {
    const size_t size = devices_.size();
    for (size_t i = 0; i < size; ++i) {
      Device& device = on(i);
      for (unsigned kernel = 0; kernel < kKernels; ++kernel)
        step<<<1, kThreads, 0, device.stream>>>(device.data, device.count, iterations_);
      CHECK_RUNTIME(cudaGetLastError());
      CHECK_RUNTIME(cudaEventRecord(device.computed, device.stream));
    }
    for (size_t i = 0; i < size; ++i) {
      const size_t to = (i + 1) % size;
      Device& receiver = on(to);
      CHECK_RUNTIME(cudaStreamWaitEvent(receiver.stream, devices_[i].computed, 0));
      CHECK_RUNTIME(cudaMemcpyPeerAsync(receiver.inbox, int(to), devices_[i].data, int(i), kCount * sizeof(unsigned),
                                        receiver.stream));
      CHECK_RUNTIME(cudaEventRecord(receiver.sent, receiver.stream));
    }
    for (size_t i = 0; i < size; ++i) {
      Device& device = on(i);
      // The next device's copy must be done before the data changes.
      CHECK_RUNTIME(cudaStreamWaitEvent(device.stream, devices_[(i + 1) % size].sent, 0));
      add<<<1, kThreads, 0, device.stream>>>(device.data, device.inbox, kCount);
      CHECK_RUNTIME(cudaGetLastError());
      CHECK_RUNTIME(cudaEventRecord(device.round[rounds_ % 2], device.stream));
    }
    ++rounds_;
    if (rounds_ > 1)
      for (size_t i = 0; i < size; ++i) CHECK_RUNTIME(cudaEventSynchronize(on(i).round[rounds_ % 2]));
    expect_round();
  }

  void synchronize() {
    for (size_t i = 0; i < devices_.size(); ++i) CHECK_RUNTIME(cudaStreamSynchronize(on(i).stream));
  }

  void check() {
    synchronize();
    for (size_t i = 0; i < devices_.size(); ++i) {
      std::vector<unsigned> values(kCount);
      unsigned long long kernels = 0;
      CHECK_RUNTIME(cudaMemcpy(values.data(), on(i).data, kCount * sizeof(unsigned), cudaMemcpyDeviceToHost));
      CHECK_RUNTIME(cudaMemcpy(&kernels, devices_[i].count, sizeof kernels, cudaMemcpyDeviceToHost));
      EXPECT(values == expected_[i]);
      EXPECT(kernels == rounds_ * (unsigned long long)kKernels);
    }
  }

 private:
  static void print(int number) {
    cudaDeviceProp properties;
    CHECK_RUNTIME(cudaGetDeviceProperties(&properties, number));
    std::printf("device GPU-");
    for (int byte = 0; byte < 16; ++byte) {
      const bool dash = byte == 4 || byte == 6 || byte == 8 || byte == 10;
      std::printf("%s%02x", dash ? "-" : "", static_cast<unsigned char>(properties.uuid.bytes[byte]));
    }
    std::printf(" %zu\n", properties.totalGlobalMem);
    std::fflush(stdout);
  }
  Device& on(size_t number) {
    CHECK_RUNTIME(cudaSetDevice(int(number)));
    return devices_[number];
  }
  void expect_round() {
    for (auto& values : expected_)
      for (unsigned& value : values)
        for (unsigned kernel = 0; kernel < kKernels; ++kernel) value = value * 3 + 1;
    const auto sent = expected_;
    for (size_t i = 0; i < sent.size(); ++i)
      for (unsigned k = 0; k < kCount; ++k) expected_[(i + 1) % sent.size()][k] += sent[i][k];
  }

  std::vector<Device> devices_;
  std::vector<std::vector<unsigned>> expected_;
  unsigned iterations_, rounds_ = 0;
};

// A large block goes from each device to the next and back to the first; where a device may, it also reads the one
// before with a kernel.
void large_copies() {
  int count = 0;
  CHECK_RUNTIME(cudaGetDeviceCount(&count));
  std::vector<unsigned> values(kLargeCount), back(kLargeCount);
  for (size_t i = 0; i < kLargeCount; ++i) values[i] = unsigned(i * 40503u + 7);
  std::vector<unsigned*> blocks(count);
  for (int i = 0; i < count; ++i) {
    CHECK_RUNTIME(cudaSetDevice(i));
    CHECK_RUNTIME(cudaMalloc(&blocks[i], kLargeBytes));
    CHECK_RUNTIME(cudaMemset(blocks[i], 0, kLargeBytes));
    CHECK_RUNTIME(cudaDeviceSynchronize());  // the default streams of two devices do not wait for each other
  }
  CHECK_RUNTIME(cudaSetDevice(0));
  CHECK_RUNTIME(cudaMemcpy(blocks[0], values.data(), kLargeBytes, cudaMemcpyHostToDevice));
  for (int i = 1; i < count; ++i) CHECK_RUNTIME(cudaMemcpyPeer(blocks[i], i, blocks[i - 1], i - 1, kLargeBytes));
  if (count > 1) {  // the first one is still current: what follows waits for the copies from it
    CHECK_RUNTIME(cudaMemset(blocks[0], 0xff, kLargeBytes));
    CHECK_RUNTIME(cudaMemcpyPeer(blocks[0], 0, blocks[count - 1], count - 1, kLargeBytes));
  }
  for (unsigned* block : blocks) {
    CHECK_RUNTIME(cudaMemcpy(back.data(), block, kLargeBytes, cudaMemcpyDefault));
    EXPECT(back == values);
  }
  for (int i = 1; i < count; ++i) {
    int can = 0;
    CHECK_RUNTIME(cudaDeviceCanAccessPeer(&can, i, i - 1));
    if (!can) continue;
    CHECK_RUNTIME(cudaSetDevice(i));
    CHECK_RUNTIME(cudaDeviceEnablePeerAccess(i - 1, 0));
    add<<<1, kThreads>>>(blocks[i], blocks[i - 1], kReadCount);
    CHECK_RUNTIME(cudaMemcpy(back.data(), blocks[i], kReadCount * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned k = 0; k < kReadCount; ++k) EXPECT(back[k] == values[k] * (i + 1));
    CHECK_RUNTIME(cudaDeviceDisablePeerAccess(i - 1));
  }
  for (unsigned* block : blocks) CHECK_RUNTIME(cudaFree(block));
}

bool input_closed(Ring& ring) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, 0) == 0) return false;
  char asked;
  if (read(STDIN_FILENO, &asked, 1) != 1) return true;
  ring.synchronize();
  std::printf("count %u\n", ring.rounds());
  std::fflush(stdout);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const bool until = argc > 1 && std::strcmp(argv[1], "until") == 0;
  const unsigned steps = !until && argc > 2 ? unsigned(std::atoi(argv[2])) : 20;
  const int at = until ? 2 : 3;
  Ring ring(argc > at ? unsigned(std::atoi(argv[at])) : 100);
  large_copies();
  ring.round();
  ring.check();
  std::printf("working\n");
  std::fflush(stdout);
  while (until ? !input_closed(ring) : ring.rounds() < steps) ring.round();
  ring.check();
  std::printf("done %u\nPASSED\n", ring.rounds());
  return 0;
}
