// usage: charged_by_form variables | graphs: takes memory in a form that hides its size, until it is refused.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../../../examples/check.hpp"

// More than the tenant's limit, behind a comment that a parser without comments would take for the declaration's end.
static int variables() {
  const std::string text =
      ".version 7.0\n.target sm_70\n.address_size 64\n"
      ".visible .global /* ; */ .align 8 .b8 big[536870912];\n.visible .entry none() { ret; }\n";
  CUmodule module = nullptr;
  CUresult result = cuModuleLoadData(&module, text.c_str());
  std::printf("512 MiB of variables: %d\n", int(result));
  return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1;
}

// Instances of a graph take memory of the server for their nodes.
static int graphs() {
  constexpr int kNodes = 500, kInstancesMax = 1000;
  CUgraph graph;
  CHECK_DRIVER(cuGraphCreate(&graph, 0));
  CUgraphNode node = nullptr, before = nullptr;
  for (int i = 0; i < kNodes; ++i) {
    CHECK_DRIVER(cuGraphAddEmptyNode(&node, graph, &before, before ? 1 : 0));
    before = node;
  }
  std::vector<CUgraphExec> instances;
  CUgraphExec instance = nullptr;
  CUresult result = CUDA_SUCCESS;
  while (int(instances.size()) < kInstancesMax &&
         (result = cuGraphInstantiateWithFlags(&instance, graph, 0)) == CUDA_SUCCESS)
    instances.push_back(instance);
  std::printf("an instance: %d\n", int(result));
  if (result != CUDA_ERROR_OUT_OF_MEMORY || instances.empty()) return 1;
  // A destroyed instance makes room for the next.
  CHECK_DRIVER(cuGraphExecDestroy(instances.back()));
  CHECK_DRIVER(cuGraphInstantiateWithFlags(&instances.back(), graph, 0));
  CHECK_DRIVER(cuGraphLaunch(instances.back(), nullptr));
  CHECK_DRIVER(cuCtxSynchronize());
  return 0;
}

int main(int argc, char** argv) {
  CUdevice device;
  CUcontext context;
  CHECK_DRIVER(cuInit(0));
  CHECK_DRIVER(cuDeviceGet(&device, 0));
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  const bool of_graphs = argc > 1 && std::strcmp(argv[1], "graphs") == 0;
  if (int failed = of_graphs ? graphs() : variables()) return failed;
  std::printf("PASSED\n");
  return 0;
}
