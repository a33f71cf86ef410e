// cuDNN's graph interface: scaled dot-product attention in bfloat16 as one operation of a graph, against the CPU.
#include <cuda_bf16.h>
#include <cudnn.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kLength = 128, kWidth = 64;
constexpr int64_t kRow = kBatch * kHeads * kLength * kWidth;

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    CHECK_LIBRARY(cudnnBackendCreateDescriptor(type, &descriptor_));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { cudnnBackendDestroyDescriptor(descriptor_); }
  cudnnBackendDescriptor_t get() const { return descriptor_; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    CHECK_LIBRARY(cudnnBackendSetAttribute(descriptor_, name, type, count, values));
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    cudnnBackendDescriptor_t handle = other.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &handle);
  }
  void finish() { CHECK_LIBRARY(cudnnBackendFinalize(descriptor_)); }

 private:
  cudnnBackendDescriptor_t descriptor_;
};

struct Tensor : Descriptor {
  enum Kind { kMemory, kValue };
  Tensor(int64_t id, cudnnDataType_t type, std::vector<int64_t> dimensions, std::vector<int64_t> strides, Kind kind)
      : Descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    const int64_t alignment = 16;
    const bool yes = true;
    set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, int64_t(dimensions.size()), dimensions.data());
    set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, int64_t(strides.size()), strides.data());
    if (kind == kValue) set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finish();
  }
};

enum Id : int64_t { kQ = 1, kK, kV, kO, kScale };

// Builds the plan of a finished operation graph: the first configuration of the heuristic that can be finalised.
class Plan {
 public:
  Plan(cudnnHandle_t handle, const Descriptor& graph)
      : heuristic_(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    heuristic_.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    heuristic_.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    heuristic_.finish();
    int64_t count = 0;
    cudnnBackendDescriptor_t configuration = configuration_.get();
    CHECK_LIBRARY(cudnnBackendGetAttribute(heuristic_.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &configuration));
    EXPECT(count >= 1);
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    plan_.finish();
  }
  void run(cudnnHandle_t handle, std::vector<int64_t> ids, std::vector<void*> pointers) {
    int64_t bytes = 0, count = 0;
    CHECK_LIBRARY(cudnnBackendGetAttribute(plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                           &count, &bytes));
    check::Device<char> workspace(size_t(bytes) + 16);
    void* scratch = workspace.get();
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, int64_t(ids.size()), ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(pointers.size()), pointers.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &scratch);
    pack.finish();
    CHECK_LIBRARY(cudnnBackendExecute(handle, plan_.get(), pack.get()));
    CHECK_RUNTIME(cudaDeviceSynchronize());
  }

 private:
  Descriptor heuristic_;
  Descriptor configuration_{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR};
  Descriptor plan_;
};

std::vector<double> expected_attention(const std::vector<float>& q, const std::vector<float>& k,
                                       const std::vector<float>& v, double scale) {
  std::vector<double> out(q.size());
  for (int64_t head = 0; head < kBatch * kHeads; ++head) {
    const size_t base = size_t(head) * kLength * kWidth;
    for (int64_t row = 0; row < kLength; ++row) {
      std::vector<double> weights(kLength);
      double sum = 0;
      for (int64_t column = 0; column < kLength; ++column) {
        double dot = 0;
        for (int64_t i = 0; i < kWidth; ++i) dot += double(q[base + row * kWidth + i]) * k[base + column * kWidth + i];
        sum += weights[column] = std::exp(dot * scale);
      }
      for (int64_t column = 0; column < kLength; ++column)
        for (int64_t i = 0; i < kWidth; ++i)
          out[base + row * kWidth + i] += weights[column] / sum * v[base + column * kWidth + i];
    }
  }
  return out;
}

}  // namespace

int main() {
  check::Random random(1);
  std::vector<__nv_bfloat16> q, k, v;
  for (auto* values : {&q, &k, &v})
    for (int64_t i = 0; i < kRow; ++i) values->push_back(__float2bfloat16(2 * random.next()));
  check::Device<__nv_bfloat16> device_q(q), device_k(k), device_v(v), device_o(static_cast<size_t>(kRow));
  float scale = 0.125f;

  cudnnHandle_t handle;
  CHECK_LIBRARY(cudnnCreate(&handle));
  const std::vector<int64_t> shape{kBatch, kHeads, kLength, kWidth},
      strides{kHeads * kLength * kWidth, kLength * kWidth, kWidth, 1};
  const Tensor tensor_q(kQ, CUDNN_DATA_BFLOAT16, shape, strides, Tensor::kMemory),
      tensor_k(kK, CUDNN_DATA_BFLOAT16, shape, strides, Tensor::kMemory);
  const Tensor tensor_v(kV, CUDNN_DATA_BFLOAT16, shape, strides, Tensor::kMemory),
      tensor_o(kO, CUDNN_DATA_BFLOAT16, shape, strides, Tensor::kMemory);
  const Tensor tensor_scale(kScale, CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1}, Tensor::kValue);
  Descriptor attention(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  attention.set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, tensor_q);
  attention.set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, tensor_k);
  attention.set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, tensor_v);
  attention.set(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, tensor_o);
  attention.set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, tensor_scale);
  attention.finish();

  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, attention);
  graph.finish();
  Plan plan(handle, graph);
  plan.run(handle, {kQ, kK, kV, kO, kScale}, {device_q.get(), device_k.get(), device_v.get(), device_o.get(), &scale});

  const auto result = device_o.host();
  check::close("attention", std::vector<float>(result.begin(), result.end()),
               expected_attention({q.begin(), q.end()}, {k.begin(), k.end()}, {v.begin(), v.end()}, scale), 1e-2);
  check::checksum("attention", result);
  CHECK_LIBRARY(cudnnDestroy(handle));
  std::printf("PASSED\n");
}
