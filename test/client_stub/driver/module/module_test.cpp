#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "client_stub/driver/module/module_state.hpp"
#include "test/client_stub/driver/memory/fixture.hpp"
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

// Answers the questions about modules: images are missing until they are sent, functions have two parameters (8 bytes
// at 0, 4 bytes at 8).
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
  REQUIRE(hand::cuLibraryLoadData(&library, code, nullptr, nullptr, 0, &option, &value, preserved) == CUDA_SUCCESS);
  return library;
}

}  // namespace

TEST_CASE("A module that is missing at the server is offered by its digest, sent, and loaded by the very call") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  REQUIRE(hand::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
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
  REQUIRE(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  CHECK(process.session->total() == before + 2);
  size_t size = 0, offset = 0;
  CHECK(hand::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_SUCCESS);
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
  REQUIRE(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  size_t size = 0, offset = 0;
  failed = false;
  const size_t before = process.session->count(ordinal(SessionOrdinal::module_function));
  CHECK(hand::cuKernelGetParamInfo(kernel, 0, &offset, &size) == CUDA_SUCCESS);
  CHECK(size == 4);
  CHECK(hand::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_function)) == before + 1);
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
  REQUIRE(hand::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_data)) == 0);
}

TEST_CASE("A server that drops an image again and again is given up on") {
  DeviceProcess process;
  serve_modules(process);
  process.session->answer(ordinal(SessionOrdinal::module_load),
                          [](capnp::MessageBuilder& reply) { miss(reply.initRoot<schema::ModuleLoadReply>()); });
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  CHECK(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 3);
}

TEST_CASE("A large image travels in pieces that may be posted") {
  DeviceProcess process;
  serve_modules(process);
  std::string text = kPtx + std::string(700'000, ' ');
  CUmodule module = nullptr;
  REQUIRE(hand::cuModuleLoadData(&module, text.c_str()) == CUDA_SUCCESS);
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

TEST_CASE("The compiler's log comes back into the program's buffer, cut to its size, with its length") {
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
  CHECK(hand::cuModuleLoadDataEx(&module, "bad ptx", 3, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(module == nullptr);
  CHECK(std::string(log) == "ptxas fatal");
  CHECK(reinterpret_cast<uintptr_t>(values[1]) == 11);
  process.session->newest().read<schema::ModuleLoad>([](auto load) {
    CHECK(load.getErrorLogBytes() == 12);
    REQUIRE(load.getJitOptions().size() == 1);
    CHECK(load.getJitOptions()[0].getOption() == CU_JIT_MAX_REGISTERS);
    CHECK(load.getJitOptions()[0].getValue() == 32);
  });
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
  REQUIRE(hand::cuLibraryGetKernel(&first, library, "one") == CUDA_SUCCESS);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_load)) == 1);
  REQUIRE(hand::cuLibraryGetKernel(&again, library, "one") == CUDA_SUCCESS);
  REQUIRE(hand::cuLibraryGetKernel(&second, library, "two") == CUDA_SUCCESS);
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
  REQUIRE(hand::cuLibraryGetKernel(&kernel, used, "one") == CUDA_SUCCESS);
  size_t before = process.session->total();
  CHECK(hand::cuLibraryUnload(unused) == CUDA_SUCCESS);
  CHECK(process.session->total() == before);
  CHECK(hand::cuLibraryUnload(used) == CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == ordinal(SessionOrdinal::module_unload));
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  CHECK(hand::cuLibraryUnload(used) == CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(hand::cuKernelGetName(&name, kernel) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("A library that is not preserved is copied when it is loaded") {
  DeviceProcess process;
  serve_modules(process);
  std::string text = kPtx;
  CUlibrary library = load_library(process, text.c_str(), false);
  std::fill(text.begin(), text.end(), '#');
  CUkernel kernel = nullptr;
  REQUIRE(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
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
  CHECK(hand::cuLibraryGetKernel(&kernel, library, "missing") == CUDA_ERROR_NOT_FOUND);
  CHECK(kernel == nullptr);
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { --known; });
  CHECK(known == 0);
}

TEST_CASE("What a kernel is asked is answered from the facts that came with it") {
  DeviceProcess process;
  serve_modules(process);
  CUlibrary library = load_library(process, kPtx, true), owner = nullptr;
  CUkernel kernel = nullptr;
  REQUIRE(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  size_t before = process.session->total();
  int value = 0;
  CHECK(hand::cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0) == CUDA_SUCCESS);
  CHECK(value == 512);
  size_t offset = 0, size = 0;
  CHECK(hand::cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(size == 4);
  CHECK(hand::cuKernelGetParamInfo(kernel, 2, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), 0, &offset, &size) == CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(hand::cuKernelGetName(&name, kernel) == CUDA_SUCCESS);
  CHECK(std::string(name) == "one");
  CHECK(hand::cuKernelGetLibrary(&owner, kernel) == CUDA_SUCCESS);
  CHECK(owner == library);
  CHECK(hand::cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 5) ==
        CUDA_ERROR_INVALID_DEVICE);
  CHECK(process.session->total() == before);
}

TEST_CASE("What is set is posted and read back here; what cannot be set is an invalid value") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(hand::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  REQUIRE(hand::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  REQUIRE(hand::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 * 1024) ==
          CUDA_SUCCESS);
  CHECK(process.session->newest().ordinal == test::kFuncSetAttribute);
  CHECK(process.session->newest().kind == wire::FrameKind::posted);
  size_t before = process.session->total();
  int value = 0;
  CHECK(hand::cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function) == CUDA_SUCCESS);
  CHECK(value == 99 * 1024);
  // 1 KiB of the 100 KiB is used by static shared memory.
  CHECK(hand::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 99 * 1024 + 1) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(hand::cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->total() == before);
}

TEST_CASE("A file is read on the client") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CHECK(hand::cuModuleLoad(&module, "/nowhere/at/all.ptx") == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(hand::cuModuleLoad(&module, "/") == CUDA_ERROR_INVALID_IMAGE);
  char path[] = "/tmp/gpuwire_module_test_XXXXXX";
  int descriptor = mkstemp(path);
  REQUIRE(descriptor >= 0);
  REQUIRE(write(descriptor, kPtx, std::strlen(kPtx)) == ssize_t(std::strlen(kPtx)));
  close(descriptor);
  CHECK(hand::cuModuleLoad(&module, path) == CUDA_SUCCESS);
  std::remove(path);
  CHECK(sent_image(*process.session).size() == std::strlen(kPtx) + 1);
}

TEST_CASE("Modules end with their context, libraries do not") {
  DeviceProcess process;
  serve_modules(process);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(hand::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
  REQUIRE(hand::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
  CUlibrary library = load_library(process, kPtx, true);
  CUkernel kernel = nullptr;
  REQUIRE(hand::cuLibraryGetKernel(&kernel, library, "one") == CUDA_SUCCESS);
  forget_modules_of(*t_context);
  CHECK(hand::cuModuleGetFunction(&function, module, "one") == CUDA_ERROR_INVALID_HANDLE);
  const char* name = nullptr;
  CHECK(hand::cuFuncGetName(&name, function) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(hand::cuKernelGetName(&name, kernel) == CUDA_SUCCESS);
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
  REQUIRE(hand::cuLibraryGetManaged(&first, &bytes, library, "m") == CUDA_SUCCESS);
  REQUIRE(hand::cuLibraryGetGlobal(&global_first, &bytes, library, "g") == CUDA_SUCCESS);
  process.make_current(1);
  REQUIRE(hand::cuLibraryGetManaged(&second, &bytes, library, "m") == CUDA_SUCCESS);
  REQUIRE(hand::cuLibraryGetGlobal(&global_second, nullptr, library, "g") == CUDA_SUCCESS);
  CHECK(first == second);
  CHECK(global_first != global_second);
  CHECK(bytes == 4);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_global)) == 3);
  uint32_t managed = 0;
  CHECK(hand::cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, first) == CUDA_SUCCESS);
  CHECK(managed == 1);
}

TEST_CASE("What is no image is told by the load, a fat binary without code for the device too") {
  DeviceProcess process;
  serve_modules(process);
  auto container = fatbin::test::build_container({{.kind = fatbin::test::kElf, .sm = 90, .contents = "cubin"}});
  CUmodule module = nullptr;
  CHECK(hand::cuModuleLoadData(&module, container.data()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(hand::cuModuleLoadData(&module, "") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(hand::cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(ordinal(SessionOrdinal::module_offer)) == 0);
}

}  // namespace gpuwire::client
