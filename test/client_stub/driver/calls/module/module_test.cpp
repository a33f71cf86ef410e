#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "client_stub/driver/state/module/kernel_parameters.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "test/client_stub/driver/state/memory/fixture.hpp"
#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"
#include "test/protocol/fatbin/fatbin_builder.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

constexpr const char* kPtx = ".version 7.0\n.target sm_75\n";

void miss(schema::ModuleLoadReply::Builder load) {
  load.setResult(CUDA_ERROR_NOT_FOUND);
  load.setMissing(true);
}

// Answers queries about modules: images are missing until they are sent, functions have two parameters (8 bytes at 0, 4
// bytes at 8).
void serve_modules(DeviceProcess& process) {
  process.session->answer(ordinal(SessionOrdinal::module_offer),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleOfferReply>(); });
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [session = process.session](capnp::MessageBuilder& reply) {
                            auto load = reply.initRoot<schema::ModuleLoadReply>();
                            if (session->count(ordinal(SessionOrdinal::module_data)) == 0) miss(load);
                          });
  process.session->serve(ordinal(SessionOrdinal::module_function),
                         [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                           auto facts = reply.initRoot<schema::FunctionFacts>();
                           frame.read<schema::ModuleFunction>([&](auto asked) {
                             if (asked.getName() == "missing") return facts.setResult(CUDA_ERROR_NOT_FOUND);
                             auto offsets = facts.initParameterOffsets(2);
                             offsets.set(0, 0);
                             offsets.set(1, 8);
                             auto sizes = facts.initParameterSizes(2);
                             sizes.set(0, 8);
                             sizes.set(1, 4);
                             auto attributes = facts.initAttributes(CU_FUNC_ATTRIBUTE_MAX);
                             facts.initAttributeErrors(CU_FUNC_ATTRIBUTE_MAX);
                             attributes.set(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 512);
                             attributes.set(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1024);
                             attributes.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 * 1024);
                           });
                         });
}

std::vector<std::byte> sent_image(const test::FakeSession& session) {
  std::vector<std::byte> out;
  for (const auto& frame : session.frames()) {
    if (frame.ordinal != ordinal(SessionOrdinal::module_data)) continue;
    frame.read<schema::ModuleData>([&](auto data) { CHECK(data.getOffset() == out.size()); });
    out.insert(out.end(), frame.bulk.begin(), frame.bulk.end());
  }
  return out;
}

CUlibrary load_library(DeviceProcess&, const void* code, bool preserved) {
  CUlibrary library = nullptr;
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* value = nullptr;
  REQUIRE(custom::cuLibraryLoadData(&library, code, nullptr, nullptr, 0, &option, &value, preserved) == CUDA_SUCCESS);
  return library;
}

}  // namespace

TEST_CASE("A module that is missing at the server is offered by its digest, sent, and loaded by the very call") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_offer)) == 1);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 2);
  auto image = sent_image(*process.session);
  REQUIRE(image.size() == std::strlen(kPtx) + 1);
  CHECK(std::memcmp(image.data(), kPtx, image.size()) == 0);
  process.session->newest().read<schema::ModuleLoad>(
      [&](auto load) { CHECK(load.getHandle() == reinterpret_cast<uint64_t>(module)); });
}

TEST_CASE("An image that the server has is loaded at once, and a kernel's question travels along") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
  CUlibrary library = load_library(process, kPtx, true);
  size_t before = process.session->total();
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 2);
  size_t size = 0, offset = 0;
  CHECK(custom::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(offset == 8);
}

TEST_CASE("A kernel looked up where a context has failed has its parameters from the next call that wants them") {
  DeviceProcess process;
  serve_modules(process);
  bool failed = true;
  process.session->serve(ordinal(SessionOrdinal::module_function),
                         [&](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                           auto facts = reply.initRoot<schema::FunctionFacts>();
                           if (failed) return facts.setParametersError(CUDA_ERROR_LAUNCH_FAILED);
                           facts.initParameterOffsets(1).set(0, 0);
                           facts.initParameterSizes(1).set(0, 4);
                         });
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  size_t size = 0, offset = 0;
  failed = false;
  const size_t before = process.session->count(ordinal(SessionOrdinal::module_function));
  CHECK(custom::cuKernelGetParamInfo(kernel, 0, &offset, &size) == CUDA_SUCCESS);
  CHECK(size == 4);
  CHECK(custom::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_function)) == before + 1);
}

TEST_CASE("Without a current context a module and its functions are asked about in their own") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr, found = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  const auto context = uint32_t(t_context->handle);
  REQUIRE(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(custom::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == ordinal(SessionOrdinal::module_function));
  CHECK(process.session->newest().context == context);
  int threads = 0;
  CHECK(custom::cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function) == CUDA_SUCCESS);
  CHECK(threads == 512);
  CHECK(custom::cuFuncGetModule(&found, function) == CUDA_SUCCESS);
  CHECK(found == module);

  // These mistakes come before the missing context, and everything else behind it.
  const size_t before = process.session->total();
  CUdeviceptr address = 0;
  CHECK(custom::cuModuleGetFunction(&function, module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuModuleGetGlobal_v2(&address, nullptr, module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuModuleGetGlobal_v2(&address, nullptr, module, "variable") == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuModuleUnload(module) == CUDA_ERROR_INVALID_CONTEXT);
  CUlaunchConfig config{};
  CHECK(custom::cuLaunchKernelEx(&config, nullptr, nullptr, nullptr, false) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuLaunchKernelEx(&config, function, nullptr, nullptr, false) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuCtxGetDevice_v2(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuCtxGetDevice(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(process.session->total() == before);
}

TEST_CASE("Without a current context a kernel has none, but a library's module and its functions have") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
  const CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  CUmodule module = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  REQUIRE(custom::cuLibraryGetModule(&module, library) == CUDA_SUCCESS);
  REQUIRE(custom::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  int threads = 0;
  CHECK(custom::cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                   reinterpret_cast<CUfunction>(kernel)) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(custom::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  CHECK(custom::cuModuleUnload(module) == CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE("An image that another thread has sent meanwhile is not sent again") {
  DeviceProcess process;
  serve_modules(process);
  int loads = 0;
  process.session->answer(ordinal(SessionOrdinal::module_load), [&](capnp::MessageBuilder& reply) {
    auto load = reply.initRoot<schema::ModuleLoadReply>();
    if (++loads == 1) miss(load);
  });
  process.session->answer(ordinal(SessionOrdinal::module_offer), [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::ModuleOfferReply>().setHave(true);
  });
  CUmodule module = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_data)) == 0);
}

TEST_CASE("A server that drops an image again and again is given up on") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { miss(reply.initRoot<schema::ModuleLoadReply>()); });
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  CHECK(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 3);
}

TEST_CASE("A large image travels in pieces that may be posted") {
  DeviceProcess process;
  serve_modules(process);
  std::string text = kPtx + std::string(700'000, ' ');
  CUmodule module = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, text.c_str()) == CUDA_SUCCESS);
  auto image = sent_image(*process.session);
  REQUIRE(image.size() == text.size() + 1);
  CHECK(std::memcmp(image.data(), text.data(), text.size()) == 0);
  size_t last = 0;
  for (const auto& frame : process.session->frames()) {
    if (frame.ordinal != ordinal(SessionOrdinal::module_data)) continue;
    CHECK(frame.kind == wire::FrameKind::posted);
    CHECK(frame.bulk.size() <= wire::kPostedBulkBytesMax);
    frame.read<schema::ModuleData>([&](auto data) { last += data.getLast(); });
  }
  CHECK(last == 1);
}

TEST_CASE("The compiler's log comes back into the program's buffer, cut to its size, with how much of that it takes") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load), [](capnp::MessageBuilder& reply) {
    auto load = reply.initRoot<schema::ModuleLoadReply>();
    load.setResult(CUDA_ERROR_INVALID_PTX);
    load.setErrorLog("ptxas fatal: syntax error");
  });
  char log[12];
  std::memset(log, 'x', sizeof log);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_MAX_REGISTERS};
  void* values[] = {log, reinterpret_cast<void*>(uintptr_t(sizeof log)), reinterpret_cast<void*>(uintptr_t(32))};
  CUmodule module = nullptr;
  CHECK(custom::cuModuleLoadDataEx(&module, "bad ptx", 3, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(module == nullptr);
  CHECK(std::string(log) == "ptxas fatal");
  CHECK(reinterpret_cast<uintptr_t>(values[1]) == sizeof log);
  process.session->newest().read<schema::ModuleLoad>([](auto load) {
    CHECK(load.getErrorLogBytes() == 12);
    REQUIRE(load.getJitOptions().size() == 1);
    CHECK(load.getJitOptions()[0].getOption() == CU_JIT_MAX_REGISTERS);
    CHECK(load.getJitOptions()[0].getValue() == 32);
  });
}

TEST_CASE("A program that wants all loaded at once has a library loaded by the very call, and is told so") {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  DeviceProcess process;
  unsetenv("CUDA_MODULE_LOADING");
  serve_modules(process);
  CUmoduleLoadingMode mode{};
  CHECK(custom::cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS);
  CHECK(mode == CU_MODULE_EAGER_LOADING);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
  load_library(process, kPtx, true);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 1);
  process.session->answer(ordinal(SessionOrdinal::module_load), [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::ModuleLoadReply>().setResult(CUDA_ERROR_INVALID_PTX);
  });
  CUlibrary bad = nullptr;
  CHECK(custom::cuLibraryLoadData(&bad, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_PTX);
  CHECK(bad == nullptr);
}

TEST_CASE("A library costs nothing before a kernel of it is looked up, and is then loaded once") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
  size_t before = process.session->total();
  CUlibrary library = load_library(process, kPtx, true);
  CHECK(process.session->total() == before);
  CUkernel first = nullptr, again = nullptr, second = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&first, library, "one") == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 1);
  REQUIRE(custom::cuLibraryGetKernel(&again, library, "one") == CUDA_SUCCESS);
  REQUIRE(custom::cuLibraryGetKernel(&second, library, "two") == CUDA_SUCCESS);
  CHECK(first == again);
  CHECK(first != second);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 1);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_function)) == 2);
}

TEST_CASE("A library that was never used is unloaded without a word, a used one with one posted frame") {
  DeviceProcess process;
  serve_modules(process);
  CUlibrary unused = load_library(process, kPtx, true), used = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, used, "one") == CUDA_SUCCESS);
  size_t before = process.session->total();
  CHECK(custom::cuLibraryUnload(unused) == CUDA_SUCCESS);
  CHECK(process.session->total() == before);
  CHECK(custom::cuLibraryUnload(used) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == ordinal(SessionOrdinal::module_unload));
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  CHECK(custom::cuLibraryUnload(used) == CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(custom::cuKernelGetName(&name, kernel) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("A library that is not preserved is copied when it is loaded") {
  DeviceProcess process;
  serve_modules(process);
  std::string text = kPtx;
  CUlibrary library = load_library(process, text.c_str(), false);
  std::fill(text.begin(), text.end(), '#');
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  auto image = sent_image(*process.session);
  CHECK(std::memcmp(image.data(), kPtx, image.size()) == 0);
}

TEST_CASE("A name that is not there leaves no handle behind") {
  DeviceProcess process;
  serve_modules(process);
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  size_t known = 0;
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { ++known; });
  CHECK(custom::cuLibraryGetKernel(&kernel, library, "missing") == CUDA_ERROR_NOT_FOUND);
  CHECK(kernel == nullptr);
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { --known; });
  CHECK(known == 0);
}

TEST_CASE("What a kernel is asked is answered from the facts that came with it") {
  DeviceProcess process;
  serve_modules(process);
  CUlibrary library = load_library(process, kPtx, true), owner = nullptr;
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  size_t before = process.session->total();
  int value = 0;
  CHECK(custom::cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 512);
  size_t offset = 0, size = 0;
  CHECK(custom::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(size == 4);
  CHECK(custom::cuKernelGetParamInfo(kernel, 2, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), 0, &offset, &size) ==
        CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(custom::cuKernelGetName(&name, kernel) == CUDA_SUCCESS);
  CHECK(std::string(name) == "one");
  CHECK(custom::cuKernelGetLibrary(&owner, kernel) == CUDA_SUCCESS);
  CHECK(owner == library);
  CHECK(custom::cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 5) ==
        CUDA_ERROR_INVALID_DEVICE);
  CHECK(process.session->total() == before);
}

TEST_CASE("What is set is posted and read back here; what cannot be set is an invalid value") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  REQUIRE(custom::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  REQUIRE(custom::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 * 1024) ==
          CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == test::kFuncSetAttribute);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  size_t before = process.session->total();
  int value = 0;
  CHECK(custom::cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function) == CUDA_SUCCESS);
  CHECK(value == 99 * 1024);
  // 1 KiB of the 100 KiB is used by static shared memory.
  CHECK(custom::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 * 1024 + 1) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->total() == before);
}

TEST_CASE("A file is read on the client") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CHECK(custom::cuModuleLoad(&module, "/nowhere/at/all.ptx") == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(custom::cuModuleLoad(&module, "/") == CUDA_ERROR_INVALID_IMAGE);
  char path[] = "/tmp/gpuwire_module_test_XXXXXX";
  int descriptor = mkstemp(path);
  REQUIRE(descriptor >= 0);
  REQUIRE(write(descriptor, kPtx, std::strlen(kPtx)) == ssize_t(std::strlen(kPtx)));
  close(descriptor);
  CHECK(custom::cuModuleLoad(&module, path) == CUDA_SUCCESS);
  std::remove(path);
  CHECK(sent_image(*process.session).size() == std::strlen(kPtx) + 1);
}

TEST_CASE("Modules end with their context, libraries do not") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  REQUIRE(custom::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  forget_modules_of(*t_context);
  CHECK(custom::cuModuleGetFunction(&function, module, "one") == CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(custom::cuFuncGetName(&name, function) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(custom::cuKernelGetName(&name, kernel) == CUDA_SUCCESS);
}

TEST_CASE("A managed variable has one address in all contexts, an ordinary one is asked for in each") {
  DeviceProcess process(2);
  serve_modules(process);
  process.session->serve(ordinal(SessionOrdinal::module_global), [](const test::SentFrame& frame,
                                                                    capnp::MessageBuilder& reply, const BulkSink&) {
    auto global = reply.initRoot<schema::ModuleGlobalReply>();
    frame.read<schema::ModuleGlobal>([&](auto asked) {
      global.setAddress(asked.getManaged() ? 0x6000'0000'0200 : 0x7100'0000'0000 + frame.context * 4096ull);
      if (!asked.getManaged()) return;
      global.setRangeAddress(0x6000'0000'0000);
      global.setRangeBytes(4096);
    });
    global.setBytes(4);
  });
  CUlibrary library = load_library(process, kPtx, true);
  CUdeviceptr first = 0, second = 0, global_first = 0, global_second = 0;
  size_t bytes = 0;
  REQUIRE(custom::cuLibraryGetManaged(&first, &bytes, library, "m") == CUDA_SUCCESS);
  REQUIRE(custom::cuLibraryGetGlobal(&global_first, &bytes, library, "g") == CUDA_SUCCESS);
  process.make_current(1);
  REQUIRE(custom::cuLibraryGetManaged(&second, &bytes, library, "m") == CUDA_SUCCESS);
  REQUIRE(custom::cuLibraryGetGlobal(&global_second, nullptr, library, "g") == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(global_first != global_second);
  CHECK(bytes == 4);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_global)) == 3);
  uint32_t managed = 0;
  CHECK(custom::cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, first) == CUDA_SUCCESS);
  CHECK(managed == 1);
}

TEST_CASE("What is no image is told by the load, a fat binary without code for the device too") {
  DeviceProcess process;
  serve_modules(process);
  auto container = fatbin::test::build_container({{.kind = fatbin::test::kElf, .sm = 90, .contents = "cubin"}});
  CUmodule module = nullptr;
  CHECK(custom::cuModuleLoadData(&module, container.data()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(custom::cuModuleLoadData(&module, "") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(custom::cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_offer)) == 0);
}

// --- parameters ----------------------------------------------------------------------------------------------------

namespace {

// A server that claims parameters of its own choice for every kernel.
struct Claims : DeviceProcess {
  Claims(std::vector<uint32_t> offsets, std::vector<uint32_t> sizes, const char* prefetch = "off")
      : DeviceProcess(1, "0", prefetch) {
    session->answer(ordinal(SessionOrdinal::module_load),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
    session->answer(ordinal(SessionOrdinal::module_function), [offsets, sizes](capnp::MessageBuilder& reply) {
      auto facts = reply.initRoot<schema::FunctionFacts>();
      auto told_offsets = facts.initParameterOffsets(unsigned(offsets.size()));
      for (unsigned i = 0; i < offsets.size(); ++i) told_offsets.set(i, offsets[i]);
      auto told_sizes = facts.initParameterSizes(unsigned(sizes.size()));
      for (unsigned i = 0; i < sizes.size(); ++i) told_sizes.set(i, sizes[i]);
    });
  }

  CUfunction function(const char* image, const char* name) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(custom::cuModuleLoadData(&module, image) == CUDA_SUCCESS);
    REQUIRE(custom::cuModuleGetFunction(&function, module, name) == CUDA_SUCCESS);
    return function;
  }
  static CUresult launch(CUfunction function, void** parameters) {
    return custom::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr, false);
  }
  // Returns the bytes of the newest launch.
  size_t parameter_bytes() const {
    size_t bytes = ~size_t{0};
    for (const auto& frame : session->frames())
      if (frame.ordinal == ordinal(SessionOrdinal::launch))
        frame.read<schema::Launch>([&](auto launch) { bytes = launch.getParameters().size(); });
    return bytes;
  }
};

constexpr const char* kOneKernel = ".version 7.0 .target sm_75 .entry k(.param .u64 p) { ret; }";

}  // namespace

TEST_CASE("A launch sends as many bytes as the program's image says, whatever the server claims") {
  for (auto [offsets, sizes] : {std::pair<std::vector<uint32_t>, std::vector<uint32_t>>{{0}, {3600}},
                                {{0, 8}, {8, 3600}},
                                {{0}, {0xffffffff}},
                                {{0xfffffff0}, {8}},
                                {{}, {}}}) {
    Claims process(offsets, sizes);
    uint64_t value = 5;
    void* parameters[] = {&value};
    CUfunction function = process.function(kOneKernel, "k");
    REQUIRE(Claims::launch(function, parameters) == CUDA_SUCCESS);
    CHECK(process.parameter_bytes() == 8);
    size_t offset = 1, bytes = 0;
    CHECK(custom::cuFuncGetParamInfo(function, 0, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(offset == 0);
    CHECK(bytes == 8);
    CHECK(custom::cuFuncGetParamInfo(function, 1, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("The parameters of a library's kernel are the image's under each of its handles") {
  for (bool preserved : {false, true}) {
    Claims process({0, 8}, {8, 3600});
    CUlibrary library = load_library(process, kOneKernel, preserved);
    CUkernel kernel = nullptr;
    CUfunction made = nullptr, of_module = nullptr;
    CUmodule module = nullptr;
    REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "k") == CUDA_SUCCESS);
    REQUIRE(custom::cuKernelGetFunction(&made, kernel) == CUDA_SUCCESS);
    REQUIRE(custom::cuLibraryGetModule(&module, library) == CUDA_SUCCESS);
    REQUIRE(custom::cuModuleGetFunction(&of_module, module, "k") == CUDA_SUCCESS);
    for (CUfunction function : {reinterpret_cast<CUfunction>(kernel), made, of_module}) {
      uint64_t value = 5;
      void* parameters[] = {&value};
      REQUIRE(Claims::launch(function, parameters) == CUDA_SUCCESS);
      CHECK(process.parameter_bytes() == 8);
    }
  }
}

TEST_CASE("Where the image does not say it, a server that claims more than there is gets an error, not the program") {
  {
    Claims endless({0}, {32765});
    void* none[] = {nullptr};
    CHECK(Claims::launch(endless.function(kPtx, "unsaid"), none) == CUDA_ERROR_INVALID_IMAGE);
  }
  Claims process({0, 8}, {8, 4096});
  CUfunction function = process.function(kPtx, "unsaid");
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0);
  void* parameters[] = {pages, pages + page - 8};
  CHECK(Claims::launch(function, parameters) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(ordinal(SessionOrdinal::launch)) == 0);
  munmap(pages, 2 * page);
}

namespace {

// Links with a server that makes this image from any input.
CUresult link(Claims& process, const std::string& made, void*& image) {
  process.session->answer(ordinal(SessionOrdinal::link_complete), [&](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::LinkReply>().setImageBytes(made.size());
  });
  process.session->serve(ordinal(SessionOrdinal::link_image),
                         [&](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink& sink) {
                           reply.initRoot<schema::Result>();
                           test::FakeSession::fill(sink, std::as_bytes(std::span(made)));
                         });
  CUlinkState state = nullptr;
  std::string input = kOneKernel;
  REQUIRE(custom::cuLinkCreate_v2(0, nullptr, nullptr, &state) == CUDA_SUCCESS);
  REQUIRE(custom::cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, input.data(), input.size() + 1, nullptr, 0, nullptr,
                                   nullptr) == CUDA_SUCCESS);
  return custom::cuLinkComplete(state, &image, nullptr);
}

}  // namespace

TEST_CASE("Of what the server has linked the program's own inputs say how long the parameters are") {
  Claims process({0}, {3600});
  void* image = nullptr;
  using namespace std::string_literals;
  REQUIRE(link(process, ".version 7.0 .target sm_75 .entry k(.param .b8 p[3600]) { ret; }\0behind it"s, image) ==
          CUDA_SUCCESS);
  uint64_t value = 5;
  void* parameters[] = {&value};
  REQUIRE(Claims::launch(process.function(static_cast<const char*>(image), "k"), parameters) == CUDA_SUCCESS);
  CHECK(process.parameter_bytes() == 8);
}

TEST_CASE("What the server has linked is no image if it claims to be longer than it is") {
  fatbin::test::Bytes code(200);
  std::memcpy(code.data(), "\177ELF\2\1", 6);
  fatbin::test::put<uint64_t>(code, 0x28, 64);   // the sections' table
  fatbin::test::put<uint16_t>(code, 0x3a, 64);   // the size of each
  fatbin::test::put<uint16_t>(code, 0x3c, 1);    // and their number
  fatbin::test::put<uint32_t>(code, 64 + 4, 1);  // with contents
  fatbin::test::put<uint64_t>(code, 64 + 32, 136);
  const std::string honest(code.begin(), code.end());
  fatbin::test::put<uint64_t>(code, 64 + 32, 1 << 20);
  const std::string greedy(code.begin(), code.end()), endless = ".version 7.0", pointers = "\xb1\x43\x62\x46" + honest;
  void* image = nullptr;
  Claims process({}, {});
  CHECK(link(process, honest, image) == CUDA_SUCCESS);
  for (const std::string& made : {greedy, endless, pointers, std::string()})
    CHECK(link(process, made, image) == CUDA_ERROR_INVALID_IMAGE);
}

TEST_CASE("Parameters that programs have used are written down, so that the next one need not read the image") {
  test::WarmStartUser user("parameters");
  const std::string image = kOneKernel;
  {
    Claims process({}, {}, "on");
    CUlibrary library = load_library(process, image.c_str(), true);
    CUkernel kernel = nullptr;
    REQUIRE(custom::cuLibraryGetKernel(&kernel, library, "k") == CUDA_SUCCESS);
    uint64_t value = 5;
    void* parameters[] = {&value};
    REQUIRE(Claims::launch(reinterpret_cast<CUfunction>(kernel), parameters) == CUDA_SUCCESS);
  }
  CHECK(user.text() == "1 0 8 k\n");
  user.write(user.file(), "1 0 16 k\n1 0 x other\n2 0 8 other\n1 32000 32000 other\n", std::ios::trunc);
  ProgramImage::Digest digest = (*ProgramImage::select(image.c_str(), {.devices = {{7, 5}}}, false))->digest();
  KernelParameters parameters(user.store(digest), digest);
  parameters.read(*ProgramImage::select(image.c_str(), {.devices = {{7, 5}}}, false), true);
  CHECK(parameters.of("k")->bytes == 16);  // the claimed number: the image was not read
  CHECK_FALSE(parameters.of("other").has_value());
}

}  // namespace gpuwire::client
