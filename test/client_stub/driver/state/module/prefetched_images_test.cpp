// Libraries and modules that earlier runs of the program used: their stored profile, and their prefetch.
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client_stub/driver/state/module/module_state.hpp"
#include "schema/api_occupancy.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"
#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;

struct User : test::WarmStartUser {
  User() : WarmStartUser("image") {}
};

// A run of the program. A letter identifies a library, and begins its kernels' names.
struct Run : DeviceProcess {
  explicit Run(const char* prefetch = "on", int devices = 1) : DeviceProcess(devices, "0", prefetch) {
    session->serve(ordinal(SessionOrdinal::module_load),
                   [this](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     auto load = reply.initRoot<schema::ModuleLoadReply>();
                     frame.read<schema::ModuleLoad>([&](auto question) {
                       const auto digest = question.getDigest();
                       const std::string bytes(digest.begin(), digest.end());
                       if (failing.contains(bytes)) load.setResult(failing.at(bytes));
                       load.setMissing(failing.contains(bytes) && failing.at(bytes) == CUDA_ERROR_NOT_FOUND);
                     });
                   });
    session->answer(ordinal(SessionOrdinal::module_function), [](capnp::MessageBuilder& reply) {
      auto facts = reply.initRoot<schema::FunctionFacts>();
      facts.initParameterOffsets(1);
      facts.initParameterSizes(1).set(0, 8);
    });
  }

  static std::string image(char letter) { return std::string(".version 7.0\n.target sm_75\n//") + letter; }
  // Returns the bytes of the image's digest.
  static std::string digest(char letter) {
    const std::string text = image(letter);
    const auto whole = ProgramImage::whole({reinterpret_cast<const uint8_t*>(text.c_str()), text.size() + 1});
    return {whole->digest().begin(), whole->digest().end()};
  }
  CUlibrary load(char letter) {
    CUlibrary library = nullptr;
    REQUIRE(custom::cuLibraryLoadData(&library, image(letter).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    return library;
  }
  CUresult get(CUlibrary library, const char* name, CUkernel* out = nullptr) {
    CUkernel kernel = nullptr;
    CUresult result = custom::cuLibraryGetKernel(&kernel, library, name);
    if (out) *out = kernel;
    return result;
  }
  CUresult use(char letter, CUkernel* out = nullptr) {
    return get(load(letter), (std::string(1, letter) + "_kernel").c_str(), out);
  }
  size_t loads() const { return session->count(ordinal(SessionOrdinal::module_load)); }
  size_t functions() const { return session->count(ordinal(SessionOrdinal::module_function)); }
  size_t unloads() const { return session->count(ordinal(SessionOrdinal::module_unload)); }
  void end() { test::server_session().end(); }

  std::map<std::string, CUresult> failing;  // by digest
};

void run_once(std::string_view letters) {
  Run run;
  for (char letter : letters) REQUIRE(run.use(letter) == CUDA_SUCCESS);
  run.end();
}

}  // namespace

TEST_CASE("Libraries that an earlier run used are asked for together with the first") {
  User user;
  run_once("abc");
  CHECK(user.lines() == 3);
  Run run;
  CHECK(run.use('b') == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  CHECK(run.functions() == 3);
  CHECK(run.session->in_flight_max() == 6);
  const size_t before = run.session->total();
  for (char letter : {'a', 'c'}) {
    CUkernel kernel = nullptr;
    CUlibrary library = run.load(letter), of = nullptr;
    const std::string name = std::string(1, letter) + "_kernel";
    REQUIRE(run.get(library, name.c_str(), &kernel) == CUDA_SUCCESS);
    CHECK(run.session->total() == before);
    CHECK(custom::cuKernelGetLibrary(&of, kernel) == CUDA_SUCCESS);
    CHECK(of == library);
  }
  CHECK(run.use('d') == CUDA_SUCCESS);
  CHECK(run.loads() == 4);
  CHECK(user.lines() == 4);
}

TEST_CASE("A library that came ahead is asked about, and unloaded, under the handle that the server knows") {
  User user;
  run_once("ab");
  Run run;
  CHECK(run.use('a') == CUDA_SUCCESS);
  uint64_t at_server = 0;
  for (const test::SentFrame& frame : run.session->frames()) {
    if (frame.ordinal != ordinal(SessionOrdinal::module_load)) continue;
    frame.read<schema::ModuleLoad>([&](auto question) { at_server = question.getHandle(); });
  }
  CUlibrary library = run.load('b');
  CUkernel kernel = nullptr;
  REQUIRE(run.get(library, "b_kernel", &kernel) == CUDA_SUCCESS);
  CHECK(reinterpret_cast<uint64_t>(library) != at_server);
  CHECK(custom::cuLibraryUnload(reinterpret_cast<CUlibrary>(at_server)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(run.get(library, "another") == CUDA_SUCCESS);
  run.session->newest().read<schema::ModuleFunction>([&](auto question) { CHECK(question.getModule() == at_server); });
  CHECK(custom::cuLibraryUnload(library) == CUDA_SUCCESS);
  run.session->newest().read<schema::ModuleUnload>([&](auto unload) { CHECK(unload.getHandle() == at_server); });
  const char* name = nullptr;
  CHECK(custom::cuKernelGetName(&name, kernel) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_FALSE(handles().known(wire::HandleKind::library, at_server));
}

TEST_CASE("Modules that an earlier run used come ahead, under the handles that the program gets") {
  User user;
  auto use = [](char letter, CUmodule* out = nullptr) {
    CUmodule module = nullptr;
    REQUIRE(custom::cuModuleLoadData(&module, Run::image(letter).c_str()) == CUDA_SUCCESS);
    CUfunction function = nullptr;
    CHECK(custom::cuModuleGetFunction(&function, module, (std::string(1, letter) + "_kernel").c_str()) == CUDA_SUCCESS);
    CUmodule of = nullptr;
    CHECK(custom::cuFuncGetModule(&of, function) == CUDA_SUCCESS);
    CHECK(of == module);
    if (out) *out = module;
  };
  {
    Run run;
    CHECK(run.use('a') == CUDA_SUCCESS);
    use('b');
    use('c');
    run.end();
  }
  CHECK(user.lines() == 3);
  Run run;
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  CHECK(run.functions() == 3);
  const size_t before = run.session->total();
  CUmodule module = nullptr;
  SUBCASE("and are used") {
    use('b', &module);
    CHECK(run.session->total() == before);
    CHECK(custom::cuModuleUnload(module) == CUDA_SUCCESS);
    run.session->newest().read<schema::ModuleUnload>(
        [&](auto unload) { CHECK(unload.getHandle() == reinterpret_cast<uint64_t>(module)); });
    use('b');
    CHECK(run.loads() == 4);
  }
  SUBCASE("but not for a library of the same image") {
    CHECK(run.use('b') == CUDA_SUCCESS);
    CHECK(run.loads() == 4);
  }
  SUBCASE("and end with their context") {
    REQUIRE(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
    CUcontext again = nullptr;
    REQUIRE(custom::cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuCtxSetCurrent(again) == CUDA_SUCCESS);
    use('b');
    CHECK(run.loads() == 4);
  }
}

TEST_CASE("Recorded queries about the kernels' occupancy are prefetched, too") {
  User user;
  std::vector<int> all_threads = {32, 64};
  SUBCASE("two questions") {}
  SUBCASE("one question") { all_threads = {32}; }
  auto ask = [&](Run& run, char letter) {
    CUkernel kernel = nullptr;
    REQUIRE(run.use(letter, &kernel) == CUDA_SUCCESS);
    for (int threads : all_threads) {
      int blocks = 0;
      CHECK(custom::cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reinterpret_cast<CUfunction>(kernel), threads,
                                                                0) == CUDA_SUCCESS);
      CHECK(blocks == threads);
    }
  };
  for (bool first : {true, false}) {
    Run run;
    run.session->serve(
        test::kOccupancyWithFlags, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
          frame.read<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsParams>([&](auto params) {
            reply.initRoot<schema::CuOccupancyMaxActiveBlocksPerMultiprocessorWithFlagsResults>().setNumBlocks(
                params.getBlockSize());
          });
        });
    ask(run, 'a');
    const size_t before = run.session->total();
    ask(run, 'b');
    CHECK((run.session->total() == before) == !first);
    CHECK(run.session->count(test::kOccupancyWithFlags) == 2 * all_threads.size());
    run.end();
  }
}

TEST_CASE("Images that the server does not have, or cannot load, are requested when the program uses them") {
  User user;
  run_once("abc");
  Run run;
  CUresult told = CUDA_SUCCESS;
  SUBCASE("not there") { run.failing[Run::digest('b')] = CUDA_ERROR_NOT_FOUND; }
  SUBCASE("cannot be loaded") { told = run.failing[Run::digest('b')] = CUDA_ERROR_INVALID_IMAGE; }
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  run.session->serve(ordinal(SessionOrdinal::module_offer),
                     [&](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                       reply.initRoot<schema::ModuleOfferReply>();
                       run.failing.clear();
                     });
  CHECK(run.use('b') == told);
  CHECK(run.loads() == (told ? 4 : 5));
  CHECK(run.use('c') == CUDA_SUCCESS);
  CHECK(run.loads() == (told ? 4 : 5));
}

TEST_CASE("Each library comes ahead once, and only in the context in which it was asked for") {
  User user;
  run_once("abc");
  Run run("on", 2);
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.use('b') == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  CHECK(run.use('b') == CUDA_SUCCESS);
  CHECK(run.loads() == 4);
  run.make_current(1);
  CHECK(run.use('c') == CUDA_SUCCESS);
  CHECK(run.loads() == 5);
}

TEST_CASE("Threads that use the same libraries at once get each its own, and none is loaded ahead twice") {
  User user;
  const std::string letters = "abcdefgh";
  run_once(letters);
  Run run;
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  std::atomic<size_t> right{0};
  std::vector<std::thread> threads;
  constexpr size_t kThreads = 4;
  for (size_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      if (custom::cuCtxSetCurrent(context)) return;
      for (size_t i = 0; i < letters.size(); ++i) {
        const char letter = letters[(i + 2 * thread) % letters.size()];
        CUlibrary library = nullptr, of = nullptr;
        CUkernel kernel = nullptr;
        if (custom::cuLibraryLoadData(&library, Run::image(letter).c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0) ||
            custom::cuLibraryGetKernel(&kernel, library, (std::string(1, letter) + "_kernel").c_str()) ||
            custom::cuKernelGetLibrary(&of, kernel) || of != library || custom::cuLibraryUnload(library))
          return;
        ++right;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == kThreads * letters.size());
  // Each use of a library loads it, except for prefetched ones, each of which was loaded once.
  CHECK(run.loads() >= kThreads * letters.size());
  CHECK(run.loads() < (kThreads + 1) * letters.size());
  CHECK(user.lines() == letters.size());
}

TEST_CASE("A library with options of the program's own neither comes ahead nor is written down") {
  User user;
  auto use = [](Run& run, char letter) {
    CUjit_option option = CU_JIT_MAX_REGISTERS;
    void* value = reinterpret_cast<void*>(uintptr_t{32});
    CUlibrary library = nullptr;
    REQUIRE(custom::cuLibraryLoadData(&library, Run::image(letter).c_str(), &option, &value, 1, nullptr, nullptr, 0) ==
            CUDA_SUCCESS);
    CHECK(run.get(library, "any") == CUDA_SUCCESS);
  };
  run_once("ab");
  Run run;
  use(run, 'c');
  CHECK(user.lines() == 2);
  CHECK(run.loads() == 1);
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  use(run, 'b');
  CHECK(run.loads() == 4);
}

TEST_CASE("Where there is no memory, what has come ahead and was not used goes first") {
  User user;
  run_once("abc");
  Run run;
  run.failing[Run::digest('c')] = CUDA_ERROR_NOT_FOUND;
  CHECK(run.use('a') == CUDA_SUCCESS);
  bool short_of_memory = true;
  run.session->answer(test::kMemAlloc, [&](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::Result>().setResult(run.unloads() == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_NOT_READY);
    short_of_memory = run.unloads() == 0;
  });
  CUdeviceptr memory = 0;
  CHECK(custom::cuMemAlloc_v2(&memory, 1 << 20) != CUDA_SUCCESS);
  CHECK_FALSE(short_of_memory);
  CHECK(run.unloads() == 1);  // c was never loaded
  CHECK(run.use('b') == CUDA_SUCCESS);
  CHECK(run.loads() == 4);
}

TEST_CASE("Nothing is asked for ahead by a program that uses none of what is known") {
  User user;
  run_once("abc");
  Run run;
  CHECK(run.use('x') == CUDA_SUCCESS);
  CHECK(run.loads() == 1);
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.loads() == 4);
}

TEST_CASE("A program of one library needs no file, and what most runs do not use is forgotten") {
  User user;
  run_once("a");
  CHECK(user.files().empty());
  run_once("abcde");
  CHECK(user.lines() == 5);
  run_once("abc");
  CHECK(user.lines() == 5);
  run_once("ab");
  CHECK(user.lines() == 2);
}

TEST_CASE("Nothing of programs is kept with GPUWIRE_LOOK_AHEAD=off") {
  User user;
  run_once("abc");
  Run run("off");
  for (char letter : {'a', 'b', 'd'}) CHECK(run.use(letter) == CUDA_SUCCESS);
  CHECK(run.loads() == 3);
  CHECK(run.functions() == 3);
  CHECK(user.lines() == 3);
}

TEST_CASE("The number of prefetched libraries is bounded, and unreadable lines are skipped") {
  User user;
  run_once("ab");
  std::string text;
  auto digest_of = [](size_t number) {
    ProgramImage::Digest digest{};
    digest[0] = uint8_t(number);
    digest[1] = uint8_t(number >> 8);
    return hex_digits(digest);
  };
  const std::string digest = digest_of(1);
  for (const std::string& line :
       {std::string(), "library " + digest, "library " + digest + " ", "library " + std::string(64, 'x') + " kernel",
        "library " + digest.substr(1) + " kernel", digest + " kernel", "stream " + digest + " kernel"})
    text += line + '\n';
  for (size_t number = 0; number < 2 * kPrefetchedImagesMax; ++number)
    text += "library " + digest_of(number) + " kernel\n";
  user.write(user.file(), text + "library " + digest_of(7) + " half");
  Run run;
  CHECK(run.use('a') == CUDA_SUCCESS);
  CHECK(run.loads() == 1 + kPrefetchedImagesMax);
}

}  // namespace gpuwire::client
