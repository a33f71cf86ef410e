// Copies between the program's memory and the device inside graphs: the memory is read and written when the graph runs,
// not when it is made.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

__global__ void add(int* data, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

static cudaStream_t stream;

static cudaGraphExec_t finish_capture() {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  return exec;
}

static void launch(cudaGraphExec_t exec) {
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
}

// Captured copies from and to `in` and `out`, whose contents change between the launches.
static void captured(int* in, int* out, int count, const char* what) {
  int* device;
  CHECK_RUNTIME(cudaMalloc(&device, count * sizeof(int)));
  for (int i = 0; i < count; ++i) in[i] = 1000 + i;
  std::memset(out, 0x55, count * sizeof(int));
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK_RUNTIME(cudaMemcpyAsync(device, in, count * sizeof(int), cudaMemcpyHostToDevice, stream));
  add<<<(count + 127) / 128, 128, 0, stream>>>(device, count, 7);
  CHECK_RUNTIME(cudaMemcpyAsync(out, device, count * sizeof(int), cudaMemcpyDeviceToHost, stream));
  cudaGraphExec_t exec = finish_capture();
  bool untouched = out[0] == 0x55555555 && out[count - 1] == 0x55555555;
  expect(untouched, "nothing is copied while capturing");
  bool right = true;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < count; ++i) in[i] = i * (round + 1);
    if (round == 2) std::memset(out, 0, count * sizeof(int));
    launch(exec);
    for (int i = 0; i < count; ++i) right &= out[i] == i * (round + 1) + 7;
  }
  // The same values again, into memory that the program has overwritten.
  std::memset(out, 0, count * sizeof(int));
  launch(exec);
  for (int i = 0; i < count; ++i) right &= out[i] == i * 4 + 7;
  expect(right, what);
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaFree(device));
}

static void accumulated() {
  // From one launch into the next, through the program's memory, without a wait in between.
  int* buffer;
  int* device;
  CHECK_RUNTIME(cudaMallocHost(&buffer, 100 * sizeof(int)));
  CHECK_RUNTIME(cudaMalloc(&device, 100 * sizeof(int)));
  for (int i = 0; i < 100; ++i) buffer[i] = i;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaMemcpyAsync(device, buffer, 100 * sizeof(int), cudaMemcpyHostToDevice, stream));
  add<<<1, 128, 0, stream>>>(device, 100, 1);
  CHECK_RUNTIME(cudaMemcpyAsync(buffer, device, 100 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  cudaGraphExec_t exec = finish_capture();
  for (int i = 0; i < 5; ++i) CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  // Then into a plain copy after the graph.
  int* other;
  CHECK_RUNTIME(cudaMalloc(&other, 100 * sizeof(int)));
  CHECK_RUNTIME(cudaMemcpyAsync(other, buffer, 100 * sizeof(int), cudaMemcpyHostToDevice, stream));
  int back[100];
  CHECK_RUNTIME(cudaMemcpyAsync(back, other, sizeof back, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  bool right = true;
  for (int i = 0; i < 100; ++i) right &= buffer[i] == i + 5 && back[i] == i + 5;
  expect(right, "data go through the program's memory from launch to launch");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
}

static void rows() {
  constexpr int kWidth = 30, kHeight = 9, kPitch = 64;
  std::vector<int> in(kPitch * kHeight), out(kPitch * kHeight, -1);
  int* device;
  size_t pitch;
  CHECK_RUNTIME(cudaMallocPitch(&device, &pitch, kWidth * sizeof(int), kHeight));
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaMemcpy2DAsync(device, pitch, in.data(), kPitch * sizeof(int), kWidth * sizeof(int), kHeight,
                                  cudaMemcpyHostToDevice, stream));
  CHECK_RUNTIME(cudaMemcpy2DAsync(out.data(), kPitch * sizeof(int), device, pitch, kWidth * sizeof(int), kHeight,
                                  cudaMemcpyDeviceToHost, stream));
  cudaGraphExec_t exec = finish_capture();
  for (size_t i = 0; i < in.size(); ++i) in[i] = int(i) * 3;
  launch(exec);
  bool right = true;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kPitch; ++x) right &= out[y * kPitch + x] == (x < kWidth ? in[y * kPitch + x] : -1);
  }
  expect(right, "rows are copied, and what is between them is left alone");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
}

static void nodes() {
  int* device;
  double first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8}, result[4] = {};
  CHECK_RUNTIME(cudaMalloc(&device, sizeof first));
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t up, down;
  CHECK_RUNTIME(cudaGraphAddMemcpyNode1D(&up, graph, nullptr, 0, device, first, sizeof first, cudaMemcpyHostToDevice));
  cudaMemcpy3DParms parameters{};
  parameters.srcPtr = make_cudaPitchedPtr(device, sizeof first, sizeof first, 1);
  parameters.dstPtr = make_cudaPitchedPtr(result, sizeof first, sizeof first, 1);
  parameters.extent = make_cudaExtent(sizeof first, 1, 1);
  parameters.kind = cudaMemcpyDeviceToHost;
  CHECK_RUNTIME(cudaGraphAddMemcpyNode(&down, graph, &up, 1, &parameters));
  cudaMemcpy3DParms asked{};
  CHECK_RUNTIME(cudaGraphMemcpyNodeGetParams(down, &asked));
  expect(asked.dstPtr.ptr == result && asked.srcPtr.ptr == device && asked.extent.width == sizeof first,
         "a node tells the program's own pointers");
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  launch(exec);
  expect(std::memcmp(result, first, sizeof first) == 0, "nodes copy");
  CHECK_RUNTIME(cudaGraphExecMemcpyNodeSetParams1D(exec, up, device, second, sizeof second, cudaMemcpyHostToDevice));
  launch(exec);
  expect(std::memcmp(result, second, sizeof second) == 0, "an executable graph takes another source");
  cudaGraphExec_t old;
  CHECK_RUNTIME(cudaGraphInstantiate(&old, graph, 0));
  launch(old);
  expect(std::memcmp(result, first, sizeof first) == 0, "and its graph keeps its own");
  CHECK_RUNTIME(cudaGraphMemcpyNodeSetParams1D(up, device, second, sizeof second, cudaMemcpyHostToDevice));
  cudaGraphExecUpdateResultInfo info{};
  CHECK_RUNTIME(cudaGraphExecUpdate(old, graph, &info));
  second[0] = 50;
  launch(old);
  expect(result[0] == 50 && result[3] == 8, "an update brings the graph's new source");
  cudaGraph_t clone;
  CHECK_RUNTIME(cudaGraphClone(&clone, graph));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  cudaGraphExec_t cloned;
  CHECK_RUNTIME(cudaGraphInstantiate(&cloned, clone, 0));
  second[3] = 80;
  launch(cloned);
  expect(result[0] == 50 && result[3] == 80, "a clone copies");
  cudaGraph_t parent;
  cudaGraphNode_t child;
  CHECK_RUNTIME(cudaGraphCreate(&parent, 0));
  CHECK_RUNTIME(cudaGraphAddChildGraphNode(&child, parent, nullptr, 0, clone));
  CHECK_RUNTIME(cudaGraphDestroy(clone));
  cudaGraphExec_t whole;
  CHECK_RUNTIME(cudaGraphInstantiate(&whole, parent, 0));
  second[2] = 70;
  launch(whole);
  expect(result[2] == 70, "a child graph copies");
  for (cudaGraphExec_t each : {exec, old, cloned, whole}) CHECK_RUNTIME(cudaGraphExecDestroy(each));
  CHECK_RUNTIME(cudaGraphDestroy(parent));
  CHECK_RUNTIME(cudaFree(device));
}

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  constexpr int kCount = 300000;
  int *pinned_in, *pinned_out;
  CHECK_RUNTIME(cudaMallocHost(&pinned_in, kCount * sizeof(int)));
  CHECK_RUNTIME(cudaMallocHost(&pinned_out, kCount * sizeof(int)));
  captured(pinned_in, pinned_out, kCount, "pinned memory");
  captured(pinned_in + 5, pinned_out + 11, 900, "parts of pinned memory");
  auto* heap = static_cast<int*>(std::malloc(2 * 5000 * sizeof(int)));
  captured(heap, heap + 5000, 5000, "memory from malloc");
  std::free(heap);
  int on_stack[400];
  captured(on_stack, on_stack + 200, 200, "memory on the stack");
  accumulated();
  rows();
  nodes();
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
