// Kernels get pinned memory by its host address, as unified addressing promises: without a flag for mapped memory and
// without a device pointer. "copies REGISTERED|GIVEN|GIVEN_ROWS ROUNDS" instead copies to such memory repeatedly, so
// that the suite can count sent bytes.
#include <cuda.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>

#include <sys/mman.h>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 300'000;
constexpr size_t kBytes = kCount * sizeof(uint32_t);
constexpr unsigned kBlocks = (kCount + 127) / 128;

struct Where {
  uint32_t before;
  const uint32_t* in;
  struct {
    uint32_t amount;
    uint32_t* out;
  } inner;
};
struct Node {
  uint32_t value;
  Node* next;
};

__device__ uint32_t* g_words;
__managed__ uint32_t* g_managed_words;

__global__ void add(const uint32_t* in, uint32_t* out, uint32_t amount, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] + amount;
}
__global__ void add_where(Where where, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) where.inner.out[i] = where.in[i] + where.inner.amount;
}
__global__ void add_each(uint32_t* const* table, unsigned rows, uint32_t amount) {
  for (unsigned row = threadIdx.x; row < rows; row += blockDim.x) table[row][row] += amount;
}
__global__ void add_to_variables() {
  g_words[0] += 1;
  g_managed_words[1] += 2;
}
__global__ void double_list(Node* node) {
  for (; node; node = node->next) node->value *= 2;
}
__global__ void read_before(const uint32_t* end, uint32_t* out) { *out = end[-1]; }
__global__ void read_at(const uint32_t* base, long index, uint32_t* out) { *out = base[index]; }
__global__ void read_joined(uint32_t low, uint32_t high, uint32_t* out) {
  *out = *reinterpret_cast<const uint32_t*>(uint64_t(high) << 32 | low);
}
__global__ void read_through(const uint32_t* const* slot, uint32_t* out) { *out = **slot; }
// Waits until the host has changed a word, without any call.
__global__ void await_word(const volatile uint32_t* word) {
  for (long i = 0; i < (1L << 40) && *word == 0; ++i) {}
}

enum class Kind { plain, mapped, combined, registered };

// Pinned memory of one kind, which begins in the middle of a page where the program may choose.
class Pinned {
 public:
  Pinned(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
    if (kind == Kind::plain) CHECK_RUNTIME(cudaMallocHost(&memory_, bytes));
    if (kind == Kind::mapped)
      CHECK_RUNTIME(cudaHostAlloc(&memory_, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    if (kind == Kind::combined) CHECK_RUNTIME(cudaHostAlloc(&memory_, bytes, cudaHostAllocWriteCombined));
    if (kind == Kind::registered) {
      void* mapped = mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT(mapped != MAP_FAILED);
      memory_ = static_cast<char*>(mapped) + 64;
      CHECK_RUNTIME(cudaHostRegister(memory_, bytes, cudaHostRegisterMapped));
    }
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() {
    if (kind_ != Kind::registered) CHECK_RUNTIME(cudaFreeHost(memory_));
    if (kind_ != Kind::registered) return;
    CHECK_RUNTIME(cudaHostUnregister(memory_));
    munmap(static_cast<char*>(memory_) - 64, bytes_ + 4096);
  }
  uint32_t* words() { return static_cast<uint32_t*>(memory_); }

 private:
  Kind kind_;
  size_t bytes_;
  void* memory_ = nullptr;
};

void by_parameters(Kind in_kind, Kind out_kind) {
  Pinned in(in_kind, kBytes), out(out_kind, kBytes);
  for (uint32_t round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < kCount; ++i) in.words()[i] = i + round;
    add<<<kBlocks, 128>>>(in.words(), out.words(), 5, kCount);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (unsigned i = 0; i < kCount; ++i) EXPECT(out.words()[i] == i + round + 5);
  }
  // In a structure.
  add_where<<<kBlocks, 128>>>({1, in.words(), {7, out.words()}}, kCount);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < kCount; ++i) EXPECT(out.words()[i] == i + 2 + 7);
}

void by_pointers_in_memory() {
  constexpr unsigned kRows = 20;
  std::vector<std::unique_ptr<Pinned>> rows;
  std::vector<uint32_t*> pointers;
  auto more_rows = [&] {
    rows.clear();
    pointers.clear();
    for (unsigned i = 0; i < kRows; ++i) {
      rows.push_back(
          std::make_unique<Pinned>(i % 3 ? Kind::plain : Kind::registered, kRows * sizeof(uint32_t) + i * 4096));
      pointers.push_back(rows.back()->words());
      pointers.back()[i] = i;
    }
  };
  auto check = [&](uint32_t added) {
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (unsigned i = 0; i < kRows; ++i) EXPECT(pointers[i][i] == i + added);
  };
  const size_t table_bytes = kRows * sizeof(uint32_t*);

  more_rows();
  uint32_t** device;
  CHECK_RUNTIME(cudaMalloc(&device, table_bytes));
  CHECK_RUNTIME(cudaMemcpy(device, pointers.data(), table_bytes, cudaMemcpyHostToDevice));
  add_each<<<1, 32>>>(device, kRows, 3);
  check(3);

  more_rows();
  Pinned table(Kind::plain, table_bytes + sizeof(Node));
  std::memcpy(table.words(), pointers.data(), table_bytes);
  add_each<<<1, 32>>>(reinterpret_cast<uint32_t**>(table.words()), kRows, 4);
  check(4);
  // The same table with other rows.
  more_rows();
  std::memcpy(table.words(), pointers.data(), table_bytes);
  add_each<<<1, 32>>>(reinterpret_cast<uint32_t**>(table.words()), kRows, 5);
  check(5);

  more_rows();
  uint32_t** managed;
  CHECK_RUNTIME(cudaMallocManaged(&managed, table_bytes));
  std::memcpy(managed, pointers.data(), table_bytes);
  add_each<<<1, 32>>>(managed, kRows, 6);
  check(6);

  Pinned words(Kind::plain, 64);
  uint32_t* pointer = words.words();
  pointer[0] = pointer[1] = 10;
  CHECK_RUNTIME(cudaMemcpyToSymbol(g_words, &pointer, sizeof pointer));
  g_managed_words = pointer;
  add_to_variables<<<1, 1>>>();
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(pointer[0] == 11 && pointer[1] == 12);
  CHECK_RUNTIME(cudaFree(managed));
  CHECK_RUNTIME(cudaFree(device));
}

void by_a_list() {
  constexpr unsigned kNodes = 30;
  std::vector<Node*> nodes;
  for (unsigned i = 0; i < kNodes; ++i) {
    Node* node;
    CHECK_RUNTIME(cudaMallocHost(&node, sizeof *node));
    *node = {i, nullptr};
    if (i) nodes.back()->next = node;
    nodes.push_back(node);
  }
  double_list<<<1, 1>>>(nodes[0]);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < kNodes; ++i) EXPECT(nodes[i]->value == 2 * i);
  for (Node* node : nodes) CHECK_RUNTIME(cudaFreeHost(node));
}

// As an array that is indexed from some other number than zero.
void reads_far_below(uint32_t* out) {
  constexpr long kFirst = 100'000;
  Pinned memory(Kind::plain, 4096);
  memory.words()[0] = 77;
  read_at<<<1, 1>>>(memory.words() - kFirst, kFirst, out);
  uint32_t got = 0;
  CHECK_RUNTIME(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT(got == 77);
}

// Memory without an earlier pointer: by its end, from below it, in two halves, by words that the stream writes, and in
// copied rows.
void by_other_addresses() {
  constexpr unsigned kWords = 3000;
  uint32_t *out, value = 100;
  const uint32_t** slot;
  CHECK_RUNTIME(cudaMalloc(&out, sizeof *out));
  CHECK_RUNTIME(cudaMalloc(&slot, 4096));
  const auto place = reinterpret_cast<CUdeviceptr>(slot);
  for (const Kind kind : {Kind::plain, Kind::registered}) {
    auto reads = [&](unsigned index, auto&& launch) {
      Pinned memory(kind, kWords * sizeof(uint32_t));
      memory.words()[index] = ++value;
      launch(memory.words());
      uint32_t got = 0;
      CHECK_RUNTIME(cudaMemcpy(&got, out, sizeof got, cudaMemcpyDeviceToHost));
      EXPECT(got == value);
    };
    reads(kWords - 1, [&](const uint32_t* at) { read_before<<<1, 1>>>(at + kWords, out); });
    reads(0, [&](const uint32_t* at) { read_at<<<1, 1>>>(at - 1, 1, out); });
    reads(0, [&](const uint32_t* at) {
      const auto address = reinterpret_cast<uintptr_t>(at);
      read_joined<<<1, 1>>>(uint32_t(address), uint32_t(address >> 32), out);
    });
    reads(0, [&](const uint32_t* at) {
      CHECK_DRIVER(
          cuStreamWriteValue64(nullptr, place, reinterpret_cast<uintptr_t>(at), CU_STREAM_WRITE_VALUE_DEFAULT));
      read_through<<<1, 1>>>(slot, out);
    });
    reads(0, [&](const uint32_t* at) {
      const auto address = reinterpret_cast<uintptr_t>(at);
      CHECK_DRIVER(cuStreamWriteValue32(nullptr, place, uint32_t(address), CU_STREAM_WRITE_VALUE_DEFAULT));
      CHECK_DRIVER(cuStreamWriteValue32(nullptr, place + 4, uint32_t(address >> 32), CU_STREAM_WRITE_VALUE_DEFAULT));
      read_through<<<1, 1>>>(slot, out);
    });
    reads(0, [&](const uint32_t* at) {
      const uint32_t* const rows[2][2] = {{nullptr, nullptr}, {at, nullptr}};
      CHECK_RUNTIME(cudaMemcpy2D(slot, 64, rows, sizeof rows[0], sizeof rows[0], 2, cudaMemcpyHostToDevice));
      read_through<<<1, 1>>>(slot + 64 / sizeof *slot, out);
    });
  }
  reads_far_below(out);
  CHECK_RUNTIME(cudaFree(slot));
  CHECK_RUNTIME(cudaFree(out));
}

// A copy of the stream writes memory that its next kernel reads, and the other way round.
void in_the_order_of_a_stream() {
  for (const Kind kind : {Kind::plain, Kind::registered}) {
    Pinned memory(kind, kBytes), other(kind, kBytes);
    std::vector<uint32_t> values(kCount);
    std::iota(values.begin(), values.end(), 9u);
    check::Device<uint32_t> device(values);
    CHECK_RUNTIME(cudaDeviceSynchronize());  // which `stream` would not wait for
    cudaStream_t stream;
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_RUNTIME(cudaMemcpyAsync(memory.words(), device.get(), kBytes, cudaMemcpyDeviceToHost, stream));
    add<<<kBlocks, 128, 0, stream>>>(memory.words(), other.words(), 1, kCount);
    CHECK_RUNTIME(cudaMemcpyAsync(device.get(), other.words(), kBytes, cudaMemcpyHostToDevice, stream));
    CHECK_RUNTIME(cudaMemcpyAsync(memory.words(), other.words(), kBytes, cudaMemcpyDefault, stream));
    CHECK_RUNTIME(cudaMemsetAsync(other.words(), 0xff, kBytes / 2, stream));
    CHECK_RUNTIME(cudaMemcpy2DAsync(other.words(), 400, device.get(), 400, 200, 100, cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    CHECK_RUNTIME(cudaMemcpy(values.data(), device.get(), kBytes, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kCount; ++i) EXPECT(values[i] == i + 10 && memory.words()[i] == i + 10);
    for (unsigned i = 0; i < kCount; ++i) {
      const bool in_box = i < 10'000 && i % 100 < 50;
      EXPECT(other.words()[i] == (in_box || i >= kCount / 2 ? i + 10 : ~0u));
    }
    CHECK_RUNTIME(cudaStreamDestroy(stream));
  }
}

// The host writes after the launch, before it releases the kernel by a word that lies in front of the data.
void written_behind_an_event() {
  Pinned gate(Kind::plain, sizeof(uint32_t)), data(Kind::plain, kBytes), out(Kind::plain, kBytes);
  cudaStream_t first, second;
  cudaEvent_t event;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  add<<<kBlocks, 128, 0, second>>>(data.words(), out.words(), 0, kCount);
  CHECK_RUNTIME(cudaStreamSynchronize(second));
  for (uint32_t round = 1; round < 4; ++round) {
    *gate.words() = 0;
    await_word<<<1, 1, 0, first>>>(gate.words());
    CHECK_RUNTIME(cudaEventRecord(event, first));
    CHECK_RUNTIME(cudaStreamWaitEvent(second, event, 0));
    add<<<kBlocks, 128, 0, second>>>(data.words(), out.words(), round, kCount);
    for (unsigned i = 0; i < kCount; ++i) data.words()[i] = i * round;
    *static_cast<volatile uint32_t*>(gate.words()) = 1;
    CHECK_RUNTIME(cudaStreamSynchronize(second));
    for (unsigned i = 0; i < kCount; ++i) EXPECT(out.words()[i] == i * round + round);
  }
  CHECK_RUNTIME(cudaEventDestroy(event));
  CHECK_RUNTIME(cudaStreamDestroy(first));
  CHECK_RUNTIME(cudaStreamDestroy(second));
}

void in_graphs() {
  Pinned in(Kind::plain, kBytes), out(Kind::registered, kBytes), third(Kind::plain, kBytes);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  // Captured: the capture is the memory's first use at the server.
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  add<<<kBlocks, 128, 0, stream>>>(in.words(), out.words(), 2, kCount);
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  // And a node added without a capture.
  const uint32_t* from = out.words();
  uint32_t *to = third.words(), amount = 3;
  unsigned count = kCount;
  void* arguments[] = {&from, &to, &amount, &count};
  cudaKernelNodeParams node{reinterpret_cast<void*>(add), dim3(kBlocks), dim3(128), 0, arguments, nullptr};
  cudaGraphNode_t captured, made;
  size_t nodes = 1;
  CHECK_RUNTIME(cudaGraphGetNodes(graph, &captured, &nodes));
  CHECK_RUNTIME(cudaGraphAddKernelNode(&made, graph, &captured, 1, &node));
  CHECK_RUNTIME(cudaGraphInstantiate(&instance, graph, 0));
  for (uint32_t round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < kCount; ++i) in.words()[i] = i * (round + 1);
    CHECK_RUNTIME(cudaGraphLaunch(instance, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (unsigned i = 0; i < kCount; ++i) EXPECT(third.words()[i] == i * (round + 1) + 5);
  }
  CHECK_RUNTIME(cudaGraphExecDestroy(instance));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

void in_stream_operations() {
  Pinned words(Kind::plain, 4096);
  words.words()[1] = 0;
  CHECK_DRIVER(
      cuStreamWriteValue32(nullptr, reinterpret_cast<CUdeviceptr>(words.words()), 17, CU_STREAM_WRITE_VALUE_DEFAULT));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(words.words()[0] == 17);
  Pinned batch_words(Kind::registered, 4096);
  CUstreamBatchMemOpParams batch[1] = {};
  batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  batch[0].writeValue.address = reinterpret_cast<CUdeviceptr>(batch_words.words() + 3);
  batch[0].writeValue.value = 18;
  CHECK_DRIVER(cuStreamBatchMemOp(nullptr, 1, batch, 0));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(batch_words.words()[3] == 18);
}

// Registered ranges of any bounds: neighbours in one page, no overlaps, and again after they were given up with work in
// flight.
void registered_ranges() {
  constexpr size_t kPage = 4096;
  void* mapped = mmap(nullptr, 16 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(mapped != MAP_FAILED);
  auto* bytes = static_cast<uint8_t*>(mapped);
  auto* one = reinterpret_cast<uint32_t*>(bytes + 100);
  auto* two = reinterpret_cast<uint32_t*>(bytes + 100 + 6000);
  for (int round = 0; round < 3; ++round) {
    CHECK_RUNTIME(cudaHostRegister(one, 6000, round ? cudaHostRegisterPortable : cudaHostRegisterDefault));
    EXPECT(cudaHostRegister(bytes + 200, 10, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    static_cast<void>(cudaGetLastError());
    CHECK_RUNTIME(cudaHostRegister(two, 5000, cudaHostRegisterMapped));
    for (unsigned i = 0; i < 1250; ++i) one[i] = i, two[i] = 7;
    add<<<10, 128>>>(one, two, round, 1250);
    CHECK_RUNTIME(cudaHostUnregister(one));  // the work can use its memory until it is done
    CHECK_RUNTIME(cudaHostUnregister(two));
    for (unsigned i = 0; i < 1250; ++i) EXPECT(two[i] == i + round);
    EXPECT(cudaHostUnregister(two) == cudaErrorHostMemoryNotRegistered);
    static_cast<void>(cudaGetLastError());
  }
  // Memory that is unmapped while registered and used by a kernel does not affect other memory.
  CHECK_RUNTIME(cudaHostRegister(one, 6000, cudaHostRegisterDefault));
  add<<<10, 128>>>(one, one, 1, 1250);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  munmap(mapped, 16 * kPage);
  Pinned other(Kind::plain, kBytes);
  add<<<kBlocks, 128>>>(other.words(), other.words(), 1, kCount);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(other.words()[5] == 1);
  CHECK_RUNTIME(cudaHostUnregister(one));
  EXPECT(cudaHostRegister(one, 6000, cudaHostRegisterDefault) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

void attributes_and_flags() {
  Pinned plain(Kind::plain, kBytes), combined(Kind::combined, kBytes);
  cudaPointerAttributes attributes;
  CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, plain.words() + 5));
  EXPECT(attributes.type == cudaMemoryTypeHost);
  EXPECT(attributes.devicePointer == plain.words() + 5 && attributes.hostPointer == plain.words() + 5);
  unsigned flags = 0;
  CHECK_RUNTIME(cudaHostGetFlags(&flags, combined.words()));
  EXPECT(flags & cudaHostAllocWriteCombined);
  add<<<kBlocks, 128>>>(plain.words(), combined.words(), 1, kCount);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(combined.words()[kCount - 1] == plain.words()[kCount - 1] + 1);
}

int copies(const std::string& how, int rounds) {
  constexpr unsigned kMany = 1u << 20;
  Pinned memory(Kind::registered, kMany * sizeof(uint32_t));
  check::Device<uint32_t> device{std::vector<uint32_t>(kMany)};
  if (how != "REGISTERED") add<<<1, 1>>>(memory.words(), memory.words(), 0, 1);
  for (int round = 0; round < rounds; ++round) {
    add<<<kMany / 256, 256>>>(device.get(), device.get(), 0x01010101u, kMany);
    if (how == "GIVEN_ROWS") {
      CHECK_RUNTIME(cudaMemcpy2D(memory.words(), 4096, device.get(), 4096, 4096, 1024, cudaMemcpyDeviceToHost));
    } else if (round % 2) {
      CHECK_RUNTIME(cudaMemcpy(memory.words(), device.get(), kMany * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    } else {
      CHECK_RUNTIME(
          cudaMemcpyAsync(memory.words(), device.get(), kMany * sizeof(uint32_t), cudaMemcpyDeviceToHost, nullptr));
      CHECK_RUNTIME(cudaStreamSynchronize(nullptr));
    }
    for (unsigned i = 0; i < kMany; ++i) EXPECT(memory.words()[i] == 0x01010101u * (round + 1));
  }
  std::printf("PASSED\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4) return copies(argv[2], std::atoi(argv[3]));
  for (const Kind in : {Kind::plain, Kind::mapped, Kind::combined, Kind::registered}) {
    by_parameters(in, Kind::plain);
    by_parameters(Kind::plain, in);
  }
  by_pointers_in_memory();
  by_a_list();
  by_other_addresses();
  in_the_order_of_a_stream();
  written_behind_an_event();
  in_graphs();
  in_stream_operations();
  registered_ranges();
  attributes_and_flags();
  std::printf("PASSED\n");
  return 0;
}
