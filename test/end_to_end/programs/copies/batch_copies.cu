// Batched copies: every direction in one batch, in stream order, and errors of a batch as results of the call.
#include <cstring>
#include <vector>

#include "../driver_check.hpp"

__global__ void add(int* data, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

namespace {

constexpr size_t kCount = 5000, kBytes = kCount * sizeof(int);

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
int* ints(CUdeviceptr pointer) { return reinterpret_cast<int*>(pointer); }

CUmemcpyAttributes order(CUmemcpySrcAccessOrder value) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = value;
  return attributes;
}

void linear(CUstream stream) {
  CUdeviceptr a, b, c;
  OK(cuMemAlloc(&a, kBytes));
  OK(cuMemAlloc(&b, kBytes));
  OK(cuMemAlloc(&c, kBytes));
  void *pinned_in, *pinned_out;
  OK(cuMemAllocHost(&pinned_in, kBytes));
  OK(cuMemAllocHost(&pinned_out, kBytes));
  std::vector<int> pageable(kCount), back(kCount, -1);
  for (size_t i = 0; i < kCount; ++i) {
    pageable[i] = int(i);
    static_cast<int*>(pinned_in)[i] = int(3 * i);
  }
  OK(cuMemsetD32(c, 77, kCount));
  OK(cuCtxSynchronize());  // the stream does not synchronise with others
  int small[4] = {1, 2, 3, 4};

  // In: from pageable memory, from pinned memory, and from the stack, which may change at once.
  CUdeviceptr in_to[] = {a, b, c + 100 * sizeof(int)},
              in_from[] = {address(pageable.data()), address(pinned_in), address(small)};
  size_t in_bytes[] = {kBytes, kBytes, sizeof small}, in_first[] = {0, 2};
  CUmemcpyAttributes in_orders[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                    order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)};
  OK(cuMemcpyBatchAsync(in_to, in_from, in_bytes, 3, in_orders, in_first, 2, stream));
  std::memset(small, 0xff, sizeof small);
  add<<<40, 128, 0, stream>>>(ints(a), kCount, 10);
  add<<<40, 128, 0, stream>>>(ints(b), kCount, 20);

  // Out, and across the device, behind the kernels.
  CUdeviceptr out_to[] = {address(back.data()), address(pinned_out), c + 4000 * sizeof(int)}, out_from[] = {a, b, a};
  size_t out_bytes[] = {kBytes, kBytes, 1000 * sizeof(int)}, out_first[] = {0};
  CUmemcpyAttributes out_orders[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
  OK(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, out_orders, out_first, 1, stream));
  OK(cuStreamSynchronize(stream));
  std::vector<int> third(kCount);
  OK(cuMemcpyDtoH(third.data(), c, kBytes));
  for (size_t i = 0; i < kCount; ++i) {
    DEMAND(back[i] == int(i) + 10);
    DEMAND(static_cast<int*>(pinned_out)[i] == int(3 * i) + 20);
    int expected = i >= 4000 ? int(i - 4000) + 10 : i >= 100 && i < 104 ? int(i) - 99 : 77;
    DEMAND(third[i] == expected);
  }

  // Invalid batches.
  size_t wrong_first[] = {1}, beyond[] = {0, 3};
  CUmemcpyAttributes none[] = {order(CU_MEMCPY_SRC_ACCESS_ORDER_INVALID)};
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, out_orders, wrong_first, 1, stream),
        CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, in_orders, beyond, 2, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, none, out_first, 1, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, out_orders, out_first, 0, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 0, out_orders, out_first, 1, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(nullptr, out_from, out_bytes, 3, out_orders, out_first, 1, stream),
        CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpyBatchAsync(out_to, out_from, out_bytes, 3, out_orders, out_first, 1, nullptr),
        CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(a));
  OK(cuMemFree(b));
  OK(cuMemFree(c));
  OK(cuMemFreeHost(pinned_in));
  OK(cuMemFreeHost(pinned_out));
}

CUmemcpy3DOperand at(CUdeviceptr pointer, size_t row_length, size_t layer_height) {
  CUmemcpy3DOperand operand{};
  operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operand.op.ptr.ptr = pointer;
  operand.op.ptr.rowLength = row_length;
  operand.op.ptr.layerHeight = layer_height;
  return operand;
}

CUmemcpy3DOperand at(CUarray array, size_t x, size_t y, size_t z) {
  CUmemcpy3DOperand operand{};
  operand.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  operand.op.array.array = array;
  operand.op.array.offset = {x, y, z};
  return operand;
}

CUDA_MEMCPY3D_BATCH_OP box(CUmemcpy3DOperand to, CUmemcpy3DOperand from, CUextent3D extent) {
  CUDA_MEMCPY3D_BATCH_OP operation{};
  operation.src = from;
  operation.dst = to;
  operation.extent = extent;
  operation.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  return operation;
}

void boxes(CUstream stream) {
  // 12 x 6 x 4 values in the program's memory, into an array, and by way of device memory with another pitch back
  // again.
  constexpr size_t kWidth = 12, kHeight = 6, kDepth = 4;
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = kWidth;
  shape.Height = kHeight;
  shape.Depth = kDepth;
  shape.Format = CU_AD_FORMAT_SIGNED_INT32;
  shape.NumChannels = 1;
  CUarray array;
  CUresult created = cuArray3DCreate(&array, &shape);
  if (created == CUDA_ERROR_NOT_SUPPORTED) return;  // a device without arrays
  OK(created);
  CUdeviceptr device;
  constexpr size_t kRow = 20, kLayer = 9;
  OK(cuMemAlloc(&device, kRow * kLayer * kDepth * sizeof(int)));
  OK(cuMemsetD32(device, 5, kRow * kLayer * kDepth));
  OK(cuCtxSynchronize());
  std::vector<int> values(kWidth * kHeight * kDepth), back(values.size(), -1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = int(i) + 1;

  CUDA_MEMCPY3D_BATCH_OP in[] = {box(at(array, 0, 0, 0), at(address(values.data()), 0, 0), {kWidth, kHeight, kDepth})};
  OK(cuMemcpy3DBatchAsync(1, in, 0, stream));
  CUDA_MEMCPY3D_BATCH_OP across[] = {box(at(device, kRow, kLayer), at(array, 2, 1, 1), {10, 5, 3})};
  OK(cuMemcpy3DBatchAsync(1, across, 0, stream));
  // Between two pointers an element is a byte.
  CUDA_MEMCPY3D_BATCH_OP out[] = {
      box(at(address(back.data()), 0, 0), at(device, kRow * sizeof(int), kLayer), {10 * sizeof(int), 5, 3})};
  OK(cuMemcpy3DBatchAsync(1, out, 0, stream));
  OK(cuStreamSynchronize(stream));
  for (size_t z = 0; z < 3; ++z) {
    for (size_t y = 0; y < 5; ++y) {
      for (size_t x = 0; x < 10; ++x)
        DEMAND(back[(z * 5 + y) * 10 + x] == values[((z + 1) * kHeight + y + 1) * kWidth + x + 2]);
    }
  }
  DEMAND(back[150] == -1);
  CUDA_MEMCPY3D_BATCH_OP flat = in[0], narrow = across[0];
  flat.extent.depth = 0;
  narrow.dst.op.ptr.rowLength = 9;
  FAILS(cuMemcpy3DBatchAsync(1, &flat, 0, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpy3DBatchAsync(1, &narrow, 0, stream), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemcpy3DBatchAsync(1, in, 1, stream), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(device));
  OK(cuArrayDestroy(array));
}

}  // namespace

int main() {
  retain_primary();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  linear(stream);
  boxes(stream);
  OK(cuStreamDestroy(stream));
  std::printf("PASSED\n");
  return 0;
}
