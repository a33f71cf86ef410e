#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "protocol/fatbin/image_size.hpp"
#include "protocol/fatbin/linked_image.hpp"
#include "protocol/wire/limits.hpp"
#include "server/module_cache/digest.hpp"
#include "server/module_cache/module_cache.hpp"
#include "server/replay/module/jit_options.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/module/module_work.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "test/server/replay/fake_session.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::HandleKind;
using wire::SessionOrdinal;

namespace {

const std::string kPtx = ".version 7.8 .target sm_75 .visible .entry k() { ret; }";

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Fixture {
  FakeDriver driver;
  FakeSession session;
  uint64_t module = wire::make_handle(HandleKind::module, 1, 1), library = wire::make_handle(HandleKind::library, 1, 1);

  size_t looked_at = 0;  // entries of the driver's log

  explicit Fixture(server::SessionSettings settings = {}) : session(driver, std::move(settings)) {
    session.enter_primary();
    driver.log.clear();
  }
  static kj::ArrayPtr<const capnp::byte> data(const server::Digest& digest) {
    return kj::arrayPtr(digest.data(), digest.size());
  }
  static server::Digest digest(const std::string& image) { return server::sha256(bytes_of(image)); }

  bool offer(const std::string& image, uint64_t bytes = 0) {
    uint64_t sequence =
        session.call<schema::ModuleOffer>(SessionOrdinal::module_offer, [&](schema::ModuleOffer::Builder params) {
          params.setDigest(data(digest(image)));
          params.setBytes(bytes ? bytes : image.size());
        });
    REQUIRE(session.reply(sequence));
    return session.reply(sequence)->as<schema::ModuleOfferReply>().getHave();
  }
  void send(const std::string& image, uint64_t offset, const std::string& piece, bool last) {
    session.post<schema::ModuleData>(
        SessionOrdinal::module_data,
        [&](schema::ModuleData::Builder params) {
          params.setDigest(data(digest(image)));
          params.setOffset(offset);
          params.setLast(last);
        },
        bytes_of(piece));
  }
  uint64_t load(const std::string& image, uint64_t handle) {
    return load(image, handle, [](auto) {});
  }
  template <class More>
  uint64_t load(const std::string& image, uint64_t handle, More&& more) {
    return session.call<schema::ModuleLoad>(SessionOrdinal::module_load, [&](schema::ModuleLoad::Builder params) {
      params.setHandle(handle);
      params.setDigest(data(digest(image)));
      more(params);
    });
  }
  void bring(const std::string& image, uint64_t handle) {
    if (!offer(image)) send(image, 0, image, true);
    REQUIRE(session.result(load(image, handle)) == CUDA_SUCCESS);
  }
  uint64_t function(uint64_t of, const std::string& name, uint64_t handle) {
    return session.call<schema::ModuleFunction>(SessionOrdinal::module_function,
                                                [&](schema::ModuleFunction::Builder params) {
                                                  params.setModule(of);
                                                  params.setName(name);
                                                  params.setHandle(handle);
                                                });
  }
  CUresult try_out(uint64_t function, std::vector<std::pair<int, int>> settings) {
    return CUresult(session.result(
        session.call<schema::FunctionTry>(SessionOrdinal::function_try, [&](schema::FunctionTry::Builder params) {
          params.setFunction(function);
          auto attributes = params.initAttributes(unsigned(settings.size()));
          auto values = params.initValues(unsigned(settings.size()));
          for (unsigned i = 0; i < settings.size(); ++i) {
            attributes.set(i, settings[i].first);
            values.set(i, settings[i].second);
          }
        })));
  }
  // Returns the attributes set since the last call.
  std::vector<std::string> set() {
    std::vector<std::string> out;
    for (; looked_at < driver.log.size(); ++looked_at)
      if (driver.log[looked_at].find("SetAttribute") != std::string::npos) out.push_back(driver.log[looked_at]);
    return out;
  }
  uint64_t global(uint64_t of, const std::string& name, bool managed) {
    return session.call<schema::ModuleGlobal>(SessionOrdinal::module_global, [&](schema::ModuleGlobal::Builder params) {
      params.setModule(of);
      params.setName(name);
      params.setManaged(managed);
    });
  }
  uint64_t unload(uint64_t handle) {
    return session.call<schema::ModuleUnload>(SessionOrdinal::module_unload,
                                              [&](auto params) { params.setHandle(handle); });
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "attributes that are tried out are taken back before others are, and at the end") {
  using Log = std::vector<std::string>;
  constexpr int kBytes = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                kClusters = CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
  bring(kPtx, module);
  bring(kPtx, library);
  const uint64_t made = wire::make_handle(wire::HandleKind::function, 7, 1),
                 kernel = wire::make_handle(wire::HandleKind::kernel, 8, 1);
  REQUIRE(session.result(function(module, "name", made)) == CUDA_SUCCESS);
  REQUIRE(session.result(function(library, "name", kernel)) == CUDA_SUCCESS);
  CHECK(try_out(0, {}) == CUDA_SUCCESS);
  CHECK(try_out(made, {{kBytes, 5}, {kClusters, 1}}) == CUDA_SUCCESS);
  CHECK(set() == Log{"cuFuncSetAttribute 8 5", "cuFuncSetAttribute 14 1"});
  CHECK(try_out(kernel, {{kBytes, 6}}) == CUDA_SUCCESS);
  CHECK(set() == Log{"cuFuncSetAttribute 14 114", "cuFuncSetAttribute 8 108", "cuKernelSetAttribute 8 6"});
  CHECK(try_out(0, {}) == CUDA_SUCCESS);
  CHECK(set() == Log{"cuKernelSetAttribute 8 208"});
  CHECK(try_out(0, {}) == CUDA_SUCCESS);
  SUBCASE("an attribute that cannot be set leaves all as they were") {
    CHECK(try_out(made, {{kBytes, 5}, {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2}}) == CUDA_ERROR_INVALID_VALUE);
    CHECK(set() == Log{"cuFuncSetAttribute 8 5", "cuFuncSetAttribute 8 108"});
    CHECK(try_out(0, {}) == CUDA_SUCCESS);
  }
  SUBCASE("an attribute that cannot be restored is reported until the end") {
    CHECK(try_out(made, {{kBytes, 5}}) == CUDA_SUCCESS);
    driver.failures["cuFuncSetAttribute"] = CUDA_ERROR_UNKNOWN;
    CHECK(try_out(kernel, {{kBytes, 6}}) == CUDA_ERROR_UNKNOWN);
    driver.failures.clear();
    CHECK(try_out(0, {}) == CUDA_ERROR_UNKNOWN);
    CHECK(try_out(0, {}) == CUDA_SUCCESS);
  }
  SUBCASE("a function that has ended is not set any more") {
    CHECK(try_out(made, {{kBytes, 5}}) == CUDA_SUCCESS);
    REQUIRE(session.result(unload(module)) == CUDA_SUCCESS);
    set();
    CHECK(try_out(0, {}) == CUDA_SUCCESS);
    CHECK(try_out(made, {{kBytes, 5}}) == CUDA_ERROR_INVALID_HANDLE);
  }
  SUBCASE("a handle of another kind, or lists that do not fit") {
    CHECK(try_out(module, {{kBytes, 5}}) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(set().empty());
    CHECK_THROWS_AS(try_out(made, std::vector<std::pair<int, int>>(5, {kBytes, 5})), server::ProtocolFault);
  }
}

TEST_CASE_FIXTURE(Fixture, "an image is offered, sent in pieces, loaded and unloaded") {
  CHECK_FALSE(offer(kPtx));
  send(kPtx, 0, kPtx.substr(0, 10), false);
  send(kPtx, 10, kPtx.substr(10), true);
  CHECK(session.result(load(kPtx, module)) == CUDA_SUCCESS);
  CHECK(driver.log.back() == "cuModuleLoadDataEx " + kPtx.substr(0, 16));
  CHECK(session.result(unload(module)) == CUDA_SUCCESS);
  CHECK(driver.modules.empty());
  CHECK(session.result(unload(module)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_FIXTURE(Fixture, "an image that is here need not be sent, and can be loaded again") {
  bring(kPtx, module);
  CHECK(offer(kPtx));
  CHECK(session.result(load(kPtx, library)) == CUDA_SUCCESS);
  CHECK(driver.libraries.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "waits are told of a module or a library that can print, and of none other") {
  bring(kPtx, module);
  CHECK_FALSE(session.sync_duties().any());
  bring(".version 7.8 .target sm_75 .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);", library);
  CHECK(session.sync_duties().any());
}

TEST_CASE_FIXTURE(Fixture, "an image that was never sent is not found") {
  CHECK(session.result(load(kPtx, module)) == CUDA_ERROR_NOT_FOUND);
  offer(kPtx);
  CHECK(session.result(load(kPtx, module)) == CUDA_ERROR_NOT_FOUND);
  send(kPtx, 0, kPtx.substr(0, 10), false);
  CHECK(session.result(load(kPtx, module)) == CUDA_ERROR_NOT_FOUND);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "an image that starts over replaces the pieces that came before") {
  offer(kPtx);
  send(kPtx, 0, kPtx.substr(0, 10), false);
  bring(kPtx, module);
}

TEST_CASE_FIXTURE(Fixture, "pieces out of order, missing, in excess or unasked for end the session") {
  CHECK_THROWS_AS(send(kPtx, 0, kPtx, true), server::ProtocolFault);
  offer(kPtx);
  CHECK_THROWS_AS(send(kPtx, 1, kPtx.substr(1), true), server::ProtocolFault);
  CHECK_THROWS_AS(send(kPtx, 0, kPtx + "x", true), server::ProtocolFault);
  CHECK_THROWS_AS(send(kPtx, ~uint64_t{0}, kPtx, true), server::ProtocolFault);
  send(kPtx, 0, kPtx.substr(0, 10), false);
  CHECK_THROWS_AS(send(kPtx, 0, kPtx.substr(0, 10), false), server::ProtocolFault);
  CHECK_THROWS_AS(send(kPtx, 10, kPtx.substr(10, 5), true), server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "an image that is another than its digest says ends the session") {
  offer(kPtx);
  std::string other = kPtx;
  other[5] ^= 1;
  CHECK_THROWS_AS(send(kPtx, 0, other, true), server::ProtocolFault);
  CHECK(session.result(load(kPtx, module)) == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE_FIXTURE(Fixture, "images of impossible size, and too many at once, end the session") {
  CHECK_THROWS_AS(offer(kPtx, wire::kModuleBytesMax + 1), server::ProtocolFault);
  CHECK_THROWS_AS(offer(""), server::ProtocolFault);
  bring(kPtx, module);
  CHECK_THROWS_AS(offer(kPtx, kPtx.size() + 1), server::ProtocolFault);
  for (size_t i = 0; i < server::kTransfersMax; ++i) offer(kPtx + std::to_string(i));
  CHECK_THROWS_AS(offer(kPtx + "one more"), server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "a digest of a wrong length ends the session") {
  CHECK_THROWS_AS(
      session.call<schema::ModuleOffer>(SessionOrdinal::module_offer, [](auto params) { params.initDigest(31); }),
      server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "an image that says it is longer than it is does not reach the driver") {
  std::string container(64, '\0');
  uint32_t magic = 0xBA55ED50;
  uint16_t version = 1, header = 16;
  uint64_t size = 1000;
  std::memcpy(container.data(), &magic, 4);
  std::memcpy(container.data() + 4, &version, 2);
  std::memcpy(container.data() + 6, &header, 2);
  std::memcpy(container.data() + 8, &size, 8);
  uint32_t wrapper_magic = 0x466243B1;
  std::string wrapper(24, '\0');
  std::memcpy(wrapper.data(), &wrapper_magic, 4);
  std::string elf =
      "\x7f"
      "ELF" +
      std::string(20, '\2');
  for (const std::string& image : {container, wrapper, elf}) {
    offer(image);
    send(image, 0, image, true);
    CHECK(session.result(load(image, module)) == CUDA_ERROR_INVALID_IMAGE);
  }
  CHECK(driver.log.empty());
}

namespace {

std::vector<uint8_t> container(const std::string& payload) {
  std::vector<uint8_t> out(16 + payload.size());
  const uint32_t magic = fatbin::kContainerMagic;
  const uint16_t version = 1, header = 16;
  const uint64_t size = payload.size();
  std::memcpy(out.data(), &magic, 4);
  std::memcpy(out.data() + 4, &version, 2);
  std::memcpy(out.data() + 6, &header, 2);
  std::memcpy(out.data() + 8, &size, 8);
  std::memcpy(out.data() + 16, payload.data(), payload.size());
  return out;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a program to be linked that is loaded as a module is the module of a library") {
  std::vector<uint8_t> linked = container("linked"), unit = container("first unit");
  const std::span<const uint8_t> spans[] = {linked, unit};
  std::vector<uint8_t> written = fatbin::write_linked_image(spans).value();
  std::string image(written.begin(), written.end());
  bring(image, module);
  CHECK(driver.count("cuModuleLoadDataEx") == 0);
  CHECK(driver.count("cuLibraryLoadData") == 1);
  CHECK(driver.count("cuLibraryGetModule") == 1);
  auto* loaded = session.state().modules().loaded(module);
  REQUIRE(loaded);
  CHECK(loaded->wrapper);  // the driver reads it until the module ends
  unload(module);
  CHECK(driver.libraries.empty());
  CHECK(driver.count("cuModuleUnload") == 0);
  CHECK(session.failed.empty());

  driver.failures["cuLibraryGetModule"] = CUDA_ERROR_NO_BINARY_FOR_GPU;
  CHECK(session.result(load(image, module)) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(driver.libraries.empty());
  driver.failures.clear();
}

TEST_CASE_FIXTURE(Fixture, "a program to be linked reaches the driver in a wrapper, and a damaged one does not") {
  std::vector<std::vector<uint8_t>> containers{container("linked"), container("first unit"), container("second")};
  std::vector<std::span<const uint8_t>> spans(containers.begin(), containers.end());
  std::vector<uint8_t> written = fatbin::write_linked_image(spans).value();
  std::string image(written.begin(), written.end());
  bring(image, library);
  auto* loaded = session.state().modules().loaded(library);
  REQUIRE(loaded);
  REQUIRE(loaded->wrapper);
  auto wrapped = fatbin::wrapped_containers(loaded->wrapper->image());
  REQUIRE(wrapped);
  REQUIRE(wrapped->linked_from.size() == 2);
  CHECK(std::memcmp(wrapped->container, containers[0].data(), containers[0].size()) == 0);
  CHECK(std::memcmp(wrapped->linked_from[1], containers[2].data(), containers[2].size()) == 0);

  driver.log.clear();
  image.resize(image.size() - 16);
  offer(image);
  send(image, 0, image, true);
  CHECK(session.result(load(image, wire::make_handle(HandleKind::library, 2, 1))) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(driver.log.empty());
}

TEST_CASE_FIXTURE(Fixture, "the logs of the compiler come back, also when it fails") {
  offer(kPtx);
  send(kPtx, 0, kPtx, true);
  driver.failures["cuModuleLoadDataEx"] = CUDA_ERROR_INVALID_PTX;
  uint64_t sequence = load(kPtx, module, [](schema::ModuleLoad::Builder params) {
    params.setErrorLogBytes(100);
    params.setInfoLogBytes(0xffffffff);
  });
  auto reply = session.reply(sequence)->as<schema::ModuleLoadReply>();
  CHECK(reply.getResult() == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(reply.getErrorLog().cStr()) == "the error log");
  CHECK(std::string(reply.getInfoLog().cStr()) == "the info log");
  CHECK(reply.getWallTimeMs() == 2.5f);
}

TEST_CASE("the driver compiles for one session with no more threads than it may have, however many are asked for") {
  for (uint64_t asked : {0ull, 1ull, 2ull, 1000ull, ~0ull}) {
    capnp::MallocMessageBuilder message;
    auto options = message.initRoot<schema::ModuleLoad>().initJitOptions(1);
    options[0].setOption(CU_JIT_SPLIT_COMPILE);
    options[0].setValue(asked);
    server::JitOptions given(options.asReader(), 0, 0, false);
    CHECK(given.result == CUDA_SUCCESS);
    REQUIRE(given.count() == 1);
    CHECK(given.names()[0] == CU_JIT_SPLIT_COMPILE);
    const auto threads = reinterpret_cast<uintptr_t>(given.values()[0]);
    CHECK(threads >= 1);
    CHECK(threads <= server::kCompilingThreadsMax);
  }
}

TEST_CASE_FIXTURE(Fixture, "options that hold pointers are refused, others pass") {
  offer(kPtx);
  send(kPtx, 0, kPtx, true);
  auto with_option = [&](int option) {
    return session.result(load(kPtx, wire::make_handle(HandleKind::module, 10 + uint32_t(option), 1),
                               [&](schema::ModuleLoad::Builder params) {
                                 auto options = params.initJitOptions(1);
                                 options[0].setOption(option);
                                 options[0].setValue(32);
                               }));
  };
  CHECK(with_option(CU_JIT_MAX_REGISTERS) == CUDA_SUCCESS);
  CHECK(with_option(CU_JIT_GLOBAL_SYMBOL_ADDRESSES) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(with_option(CU_JIT_INFO_LOG_BUFFER) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(with_option(4000) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK_THROWS_AS(load(kPtx, module, [](schema::ModuleLoad::Builder params) { params.initJitOptions(1000); }),
                  server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture,
                  "a handle that is taken unloads what was loaded for it, one of another kind ends the session") {
  bring(kPtx, module);
  CHECK(session.result(load(kPtx, module)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.modules.size() == 1);
  CHECK_THROWS_AS(load(kPtx, wire::make_handle(HandleKind::stream, 1, 1)), server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "a function comes with all that a launch of it needs to know") {
  bring(kPtx, module);
  uint64_t handle = wire::make_handle(HandleKind::function, 1, 1);
  uint64_t sequence = function(module, "k", handle);
  auto facts = session.reply(sequence)->as<schema::FunctionFacts>();
  CHECK(facts.getResult() == CUDA_SUCCESS);
  REQUIRE(facts.getParameterOffsets().size() == 2);
  CHECK(facts.getParameterOffsets()[1] == 8);
  CHECK(facts.getParameterSizes()[1] == 4);
  REQUIRE(facts.getAttributes().size() == 16);
  CHECK(facts.getAttributes()[3] == 103);
  void* native = nullptr;
  CHECK(session.handles().find(HandleKind::function, handle, native));
  unload(module);
  CHECK_FALSE(session.handles().find(HandleKind::function, handle, native));
}

TEST_CASE_FIXTURE(Fixture, "a kernel of a library comes with its attributes on the caller's device") {
  bring(kPtx, library);
  uint64_t sequence = function(library, "k", wire::make_handle(HandleKind::kernel, 1, 1));
  auto facts = session.reply(sequence)->as<schema::FunctionFacts>();
  CHECK(facts.getResult() == CUDA_SUCCESS);
  CHECK(facts.getAttributes()[3] == 203);
  CHECK(facts.getAttributeErrors()[15] == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_FIXTURE(Fixture, "a kernel whose parameters nobody is told after a fault is found, and asked for once more") {
  bring(kPtx, library);
  const uint64_t handle = wire::make_handle(HandleKind::kernel, 1, 1);
  driver.failures["cuKernelGetParamInfo"] = CUDA_ERROR_LAUNCH_FAILED;
  auto untold = session.reply(function(library, "k", handle))->as<schema::FunctionFacts>();
  CHECK(untold.getResult() == CUDA_SUCCESS);
  CHECK(untold.getParametersError() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(untold.getAttributes()[3] == 203);
  driver.failures.clear();
  auto told = session.reply(function(library, "k", handle))->as<schema::FunctionFacts>();
  CHECK(told.getResult() == CUDA_SUCCESS);
  CHECK(told.getParametersError() == CUDA_SUCCESS);
  CHECK(told.getParameterOffsets().size() == 2);
}

TEST_CASE_FIXTURE(Fixture,
                  "functions that are not there, of modules that are not there, or with unusable handles are refused") {
  bring(kPtx, module);
  uint64_t handle = wire::make_handle(HandleKind::function, 1, 1);
  CHECK(session.result(function(library, "k", handle)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(function(handle, "k", handle)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK_THROWS_AS(function(module, "k", wire::make_handle(HandleKind::kernel, 1, 1)), server::ProtocolFault);
  CHECK_THROWS_AS(function(module, "", handle), server::ProtocolFault);
  CHECK_THROWS_AS(function(module, std::string(wire::kNameBytesMax + 1, 'k'), handle), server::ProtocolFault);
  CHECK(session.result(function(module, "k", handle)) == CUDA_SUCCESS);
  CHECK(session.result(function(module, "k", handle)) == CUDA_ERROR_INVALID_HANDLE);
  driver.failures["cuModuleGetFunction"] = CUDA_ERROR_NOT_FOUND;
  CHECK(session.result(function(module, "k", wire::make_handle(HandleKind::function, 2, 1))) == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE_FIXTURE(Fixture, "variables of modules and libraries are found, managed ones in libraries only") {
  bring(kPtx, module);
  bring(kPtx, library);
  auto reply = session.reply(global(module, "v", false))->as<schema::ModuleGlobalReply>();
  CHECK(reply.getAddress() == 0xabc000);
  CHECK(reply.getBytes() == 12);
  CHECK(session.reply(global(library, "v", true))->as<schema::ModuleGlobalReply>().getAddress() == 0xdef000);
  CHECK(session.result(global(library, "v", false)) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(session.result(global(module, "v", true)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(session.result(global(0, "v", false)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE_FIXTURE(Fixture, "the functions of a module are listed by name") {
  bring(kPtx, module);
  uint64_t sequence = session.call<schema::ModuleUnload>(SessionOrdinal::module_functions,
                                                         [&](auto params) { params.setHandle(module); });
  auto names = session.reply(sequence)->as<schema::ModuleFunctions>().getNames();
  REQUIRE(names.size() == 2);
  CHECK(std::string(names[1].cStr()) == "second");
  sequence = session.call<schema::ModuleUnload>(SessionOrdinal::module_functions,
                                                [&](auto params) { params.setHandle(library); });
  CHECK(session.result(sequence) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an image that one session sent is there for the next, unless it is another tenant's") {
  TemporaryDirectory directory;
  auto cache = server::ModuleCache::open({.directory = directory.path() / "cache"});
  REQUIRE(cache);
  {
    Fixture first({cache->get(), "red"});
    first.bring(kPtx, first.module);
  }
  {
    Fixture second({cache->get(), "red"});
    CHECK(second.offer(kPtx));
    CHECK(second.session.result(second.load(kPtx, second.module)) == CUDA_SUCCESS);
  }
  Fixture other({cache->get(), "blue"});
  CHECK_FALSE(other.offer(kPtx));
  uint64_t sequence = other.load(kPtx, other.module);
  CHECK(other.session.result(sequence) == CUDA_ERROR_NOT_FOUND);
  CHECK(other.session.reply(sequence)->as<schema::ModuleLoadReply>().getMissing());
}

TEST_CASE_FIXTURE(Fixture,
                  "while the driver loads, other calls are answered, and what is looked up in it comes behind") {
  REQUIRE_FALSE(offer(kPtx));
  send(kPtx, 0, kPtx, true);
  session.works_at_once = false;
  const uint64_t kernel = wire::make_handle(HandleKind::kernel, 1, 1);
  const uint64_t loading = load(kPtx, library), looking = function(library, "k", kernel);
  const uint64_t other = session.call<schema::Ping>(SessionOrdinal::ping, [](auto) {});
  CHECK(session.result(other) == CUDA_SUCCESS);
  CHECK(session.result(loading) == -1);
  CHECK(session.result(looking) == -1);
  CHECK(driver.count("cuLibraryLoadData") == 0);
  // The frame that names them waits, and the executor continues as soon as they are present.
  std::thread waiter([&] { session.run_waiters(); });
  void* native = nullptr;
  CHECK(session.handles().find(HandleKind::kernel, kernel, native));
  CHECK(native == driver.kernels["k"]);
  waiter.join();
  CHECK(session.result(loading) == CUDA_SUCCESS);
  CHECK(session.result(looking) == CUDA_SUCCESS);
  CHECK(driver.count("cuLibraryLoadData") == 1);
  // The library is compiled by now, so another kernel of it needs no other thread.
  CHECK(session.result(function(library, "j", wire::make_handle(HandleKind::kernel, 2, 1))) == CUDA_SUCCESS);
  CHECK(session.result(unload(library)) == CUDA_SUCCESS);
  CHECK_FALSE(session.handles().find(HandleKind::kernel, kernel, native));
}

TEST_CASE_FIXTURE(Fixture,
                  "what is looked up behind a load that fails is not there, and the handle may be loaded again") {
  REQUIRE_FALSE(offer(kPtx));
  send(kPtx, 0, kPtx, true);
  session.works_at_once = false;
  driver.failures["cuModuleLoadDataEx"] = CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t function_handle = wire::make_handle(HandleKind::function, 1, 1);
  const uint64_t loading = load(kPtx, module), looking = function(module, "k", function_handle);
  const uint64_t asking = global(module, "v", false);
  session.run_waiters();
  CHECK(session.result(loading) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(session.result(looking) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(session.result(asking) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.count("cuModuleGetFunction") == 0);
  driver.failures.clear();
  const uint64_t again = load(kPtx, module);
  session.run_waiters();
  CHECK(session.result(again) == CUDA_SUCCESS);
  CHECK(session.result(function(module, "k", function_handle)) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Fixture,
                  "no more loads are with the driver at a time than may be, and the others come in their order") {
  REQUIRE_FALSE(offer(kPtx));
  send(kPtx, 0, kPtx, true);
  session.works_at_once = false;
  std::vector<uint64_t> loads;
  for (uint32_t i = 1; i <= server::kModuleTasksMax + 3; ++i)
    loads.push_back(load(kPtx, wire::make_handle(HandleKind::module, i, 1)));
  CHECK(session.waiting() == server::kModuleTasksMax);
  session.run_waiters();
  for (uint64_t one : loads) CHECK(session.result(one) == CUDA_SUCCESS);
  CHECK(driver.modules.size() == loads.size());
}

TEST_CASE_FIXTURE(Fixture,
                  "a module is unloaded on another thread where a stream may stand at a function of the client") {
  bring(kPtx, module);
  uint64_t kept = wire::make_handle(HandleKind::module, 2, 1);
  bring(kPtx, kept);
  driver.log.clear();
  session.works_at_once = false;
  CHECK(session.result(unload(kept)) == CUDA_SUCCESS);
  CHECK(driver.count("cuModuleUnload") == 1);
  server::HostCallbacks& callbacks = session.state().callbacks();
  CHECK(callbacks.enqueue(session, nullptr, 1, server::HostCallbacks::Kind::host_function) == CUDA_SUCCESS);
  const uint64_t unloading = unload(module);
  CHECK(session.result(unloading) == -1);
  CHECK(driver.count("cuModuleUnload") == 1);
  void* native = nullptr;
  CHECK_FALSE(session.handles().find(HandleKind::module, module, native));
  session.run_waiters();
  CHECK(session.result(unloading) == CUDA_SUCCESS);
  CHECK(driver.count("cuModuleUnload") == 2);
  std::thread stream([&] { driver.host_functions[0](); });
  while (!callbacks.done(1)) std::this_thread::yield();
  stream.join();
}

TEST_CASE_FIXTURE(Fixture, "a context does not end while something is loaded into it") {
  REQUIRE_FALSE(offer(kPtx));
  send(kPtx, 0, kPtx, true);
  session.works_at_once = false;
  const uint64_t loading = load(kPtx, module);
  std::atomic<bool> loaded{false};
  driver.during = [&](std::string_view name) {
    if (name == "cuModuleLoadDataEx") loaded = true;
    if (name == "cuDevicePrimaryCtxReset_v2") CHECK(loaded);
  };
  std::thread waiter([&] { session.run_waiters(); });
  CHECK(session.result(session.call<schema::RetainPrimary>(SessionOrdinal::reset_primary, [](auto params) {
    params.setContext(FakeSession::kPrimary);
  })) == CUDA_SUCCESS);
  waiter.join();
  driver.during = nullptr;
  CHECK(session.result(loading) == CUDA_SUCCESS);
  void* native = nullptr;
  CHECK_FALSE(session.handles().find(HandleKind::module, module, native));
}

TEST_CASE("the end of a session unloads its modules and libraries") {
  Fixture fixture;
  fixture.bring(kPtx, fixture.library);
  CHECK(fixture.session.end());
  CHECK(fixture.driver.libraries.empty());
}
