// A thread loads, looks up, links or unloads code, for which the driver may wait until all streams are idle, while one
// stream waits in a host function for a lock of the program. The main thread holds that lock and makes calls that the
// server has to answer: these must not wait for the other thread's call.
#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "../driver_check.hpp"

static constexpr int kCalls = 300;  // more than enough for the other thread's call to reach the server

static const char* const kText =
    ".version 8.0\n.target sm_50\n.address_size 64\n"
    ".visible .global .align 4 .u32 number;\n"
    ".visible .entry nothing() { ret; }\n";

static std::mutex interpreter;
static std::atomic<bool> stands{false}, begun{false};

static void CUDA_CB function(void*) {
  stands = true;
  std::lock_guard lock(interpreter);
}

static void launch(CUfunction what) {
  OK(cuLaunchKernel(what, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(cuStreamSynchronize(nullptr));
}

static void load_module() {
  CUmodule module;
  CUfunction found;
  CUdeviceptr number;
  size_t bytes = 0;
  OK(cuModuleLoadData(&module, kText));
  OK(cuModuleGetFunction(&found, module, "nothing"));
  OK(cuModuleGetGlobal(&number, &bytes, module, "number"));
  DEMAND(bytes == sizeof(unsigned));
  launch(found);
  OK(cuModuleUnload(module));
}

static void load_library() {
  CUlibrary library;
  CUkernel kernel;
  CUdeviceptr number;
  size_t bytes = 0;
  OK(cuLibraryLoadData(&library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "nothing"));
  OK(cuLibraryGetGlobal(&number, &bytes, library, "number"));
  launch(reinterpret_cast<CUfunction>(kernel));
  OK(cuLibraryUnload(library));
}

static void link_and_load() {
  CUlinkState linker;
  void* image = nullptr;
  size_t bytes = 0;
  CUmodule module;
  OK(cuLinkCreate(0, nullptr, nullptr, &linker));
  OK(cuLinkAddData(linker, CU_JIT_INPUT_PTX, const_cast<char*>(kText), std::strlen(kText) + 1, "text", 0, nullptr,
                   nullptr));
  OK(cuLinkComplete(linker, &image, &bytes));
  OK(cuModuleLoadData(&module, image));
  OK(cuLinkDestroy(linker));
  OK(cuModuleUnload(module));
}

// Runs the other thread's call and the main thread's queries while a stream is blocked.
static void beside(CUcontext context, CUstream stream, const std::function<void()>& other) {
  stands = begun = false;
  std::unique_lock lock(interpreter);
  OK(cuLaunchHostFunc(stream, function, nullptr));
  while (!stands) std::this_thread::yield();
  std::thread thread([&] {
    OK(cuCtxSetCurrent(context));
    begun = true;
    other();
  });
  while (!begun) std::this_thread::yield();
  for (int i = 0; i < kCalls; ++i) {
    size_t free_bytes = 0, total_bytes = 0;
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    DEMAND(free_bytes <= total_bytes);
  }
  lock.unlock();
  thread.join();
  OK(cuStreamSynchronize(stream));
}

int main() {
  CUstream stream;
  CUcontext context;
  CUmodule unloaded;
  retain_primary();
  OK(cuCtxGetCurrent(&context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuModuleLoadData(&unloaded, kText));
  beside(context, stream, load_module);
  beside(context, stream, load_library);
  beside(context, stream, link_and_load);
  beside(context, stream, [&] {
    OK(cuModuleUnload(unloaded));
    size_t free_bytes = 0, total_bytes = 0;
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
  });
  std::printf("PASSED\n");
  return 0;
}
