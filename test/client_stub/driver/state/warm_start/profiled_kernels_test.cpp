// Kernels that earlier programs used: their stored profile, and their prefetch.
#include "client_stub/driver/state/warm_start/profiled_kernels.hpp"

#include <set>
#include <string>
#include <vector>

#include "client_stub/driver/state/module/module_state.hpp"
#include "test/client_stub/driver/state/memory/fixture.hpp"
#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

constexpr const char* kPtx = ".version 7.0\n.target sm_75\n";

struct User : test::WarmStartUser {
  User() : WarmStartUser("kernel") {}
};

// A program of the user's, with a library of any kernels but "gone".
struct Program : DeviceProcess {
  explicit Program(const char* prefetch = "on") : DeviceProcess(1, "0", prefetch) {
    session->answer(ordinal(SessionOrdinal::module_load),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
    session->serve(ordinal(SessionOrdinal::module_function),
                   [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     auto facts = reply.initRoot<schema::FunctionFacts>();
                     frame.read<schema::ModuleFunction>([&](auto question) {
                       if (question.getName() == "gone") facts.setResult(CUDA_ERROR_NOT_FOUND);
                       facts.initParameterOffsets(1);
                       facts.initParameterSizes(1).set(0, uint32_t(question.getName().size()));
                     });
                   });
    REQUIRE(custom::cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  }

  CUresult use(const char* name) {
    CUkernel kernel = nullptr;
    CUresult result = custom::cuLibraryGetKernel(&kernel, library, name);
    if (result) return result;
    size_t offset = 0, bytes = 0;
    CHECK(custom::cuKernelGetParamInfo(kernel, 0, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(bytes == std::string(name).size());
    return result;
  }
  size_t asked() const { return session->count(ordinal(SessionOrdinal::module_function)); }

  CUlibrary library = nullptr;
};

}  // namespace

TEST_CASE("Kernels that an earlier program used are asked for together with the first one that is used") {
  User user;
  {
    Program program;
    for (const char* name : {"a", "longer", "b", "a"}) CHECK(program.use(name) == CUDA_SUCCESS);
    CHECK(program.asked() == 3);
    CHECK(program.session->in_flight_max() == 2);  // the load of the library and the first kernel
  }
  CHECK(user.text() == "a\nlonger\nb\n");
  {
    Program program;
    CHECK(program.asked() == 0);
    CHECK(program.use("longer") == CUDA_SUCCESS);
    CHECK(program.asked() == 3);
    CHECK(program.session->in_flight_max() == 4);
    const size_t before = program.session->total();
    for (const char* name : {"a", "b", "longer"}) CHECK(program.use(name) == CUDA_SUCCESS);
    CHECK(program.session->total() == before);
    CHECK(program.use("new") == CUDA_SUCCESS);
    CHECK(program.asked() == 4);
  }
  CHECK(user.text() == "a\nlonger\nb\nnew\n");
}

TEST_CASE("A module's functions are asked for ahead, too, when the first is asked for") {
  User user;
  for (size_t asked_at_once : {1, 2}) {
    Program program;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(custom::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
    CHECK(program.asked() == 0);
    REQUIRE(custom::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
    CHECK(program.asked() == asked_at_once);
    REQUIRE(custom::cuModuleGetFunction(&function, module, "two") == CUDA_SUCCESS);
    CHECK(program.asked() == 2);
    CHECK(custom::cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(custom::cuFuncGetModule(&module, function) == CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_CASE("A kernel that is there no more, or a line that is none, costs nobody anything") {
  User user;
  {
    Program program;
    CHECK(program.use("a") == CUDA_SUCCESS);
    CHECK(program.use("b") == CUDA_SUCCESS);
  }
  user.write(user.file(), std::string_view("gone\n\na\na\nwith\0zero\nhalf", 24), std::ios::trunc);
  size_t handles_before = 0, handles_now = 0;
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { ++handles_before; });
  Program program;
  CHECK(program.use("b") == CUDA_SUCCESS);
  CHECK(program.asked() == 3);  // b, gone, a
  CHECK(program.use("gone") == CUDA_ERROR_NOT_FOUND);
  CHECK(program.asked() == 4);
  CHECK(program.use("a") == CUDA_SUCCESS);
  CHECK(program.asked() == 4);
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { ++handles_now; });
  CHECK(handles_now == handles_before + 2);
}

TEST_CASE("An image that the server has to be sent first is asked about again, with all that was asked ahead") {
  User user;
  {
    Program program;
    for (const char* name : {"a", "b", "c"}) CHECK(program.use(name) == CUDA_SUCCESS);
  }
  Program program;
  program.session->answer(ordinal(SessionOrdinal::module_offer),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleOfferReply>(); });
  program.session->answer(ordinal(SessionOrdinal::module_load), [&](capnp::MessageBuilder& reply) {
    auto load = reply.initRoot<schema::ModuleLoadReply>();
    if (program.session->count(ordinal(SessionOrdinal::module_data)) > 0) return;
    load.setResult(CUDA_ERROR_NOT_FOUND);
    load.setMissing(true);
  });
  CHECK(program.use("c") == CUDA_SUCCESS);
  CHECK(program.asked() == 6);
  CHECK(program.use("a") == CUDA_SUCCESS);
  CHECK(program.asked() == 6);
}

TEST_CASE("Nothing is kept where the user wants nothing kept") {
  User user;
  const char* prefetch = "on";
  SUBCASE("no looking ahead") { prefetch = "off"; }
  SUBCASE("no key") { setenv("GPUWIRE_CACHE_KEY_FILE", "none", 1); }
  Program program(prefetch);
  for (const char* name : {"a", "b", "c"}) CHECK(program.use(name) == CUDA_SUCCESS);
  CHECK(user.files().empty());
}

TEST_CASE("All kernels of a library are asked for in rounds of a bounded number, and are not kept as used") {
  User user;
  Program program;
  constexpr size_t kKernels = 2 * kPrefetchedKernelsMax + 3;
  program.session->answer(ordinal(SessionOrdinal::module_functions), [](capnp::MessageBuilder& reply) {
    auto names = reply.initRoot<schema::ModuleFunctions>().initNames(kKernels);
    for (unsigned i = 0; i < kKernels; ++i) names.set(i, "k" + std::to_string(i));
  });
  CHECK(program.use("k7") == CUDA_SUCCESS);
  std::vector<CUkernel> kernels(kKernels);
  REQUIRE(custom::cuLibraryEnumerateKernels(kernels.data(), unsigned(kernels.size()), program.library) == CUDA_SUCCESS);
  CHECK(program.asked() == kKernels);
  CHECK(program.session->in_flight_max() == kPrefetchedKernelsMax);
  CHECK(std::set<CUkernel>(kernels.begin(), kernels.end()).size() == kKernels);
  const char* name = nullptr;
  CHECK(custom::cuKernelGetName(&name, kernels[200]) == CUDA_SUCCESS);
  CHECK(std::string(name) == "k200");
  CHECK(user.files().empty());
}

TEST_CASE("The number of prefetched kernels is bounded, and names that cannot be stored are skipped") {
  User user;
  ProfiledKernels known(user.store({}));
  for (size_t i = 0; i < 2 * kPrefetchedKernelsMax; ++i) known.used("k" + std::to_string(i));
  for (const std::string& name : {std::string("two\nlines"), std::string(), std::string("ze\0ro", 5)}) known.used(name);
  CHECK(user.lines() == 2 * kPrefetchedKernelsMax);
  CHECK(ProfiledKernels(user.store({})).ahead().size() == kPrefetchedKernelsMax);
}

}  // namespace gpuwire::client
