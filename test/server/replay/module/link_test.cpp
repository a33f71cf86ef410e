// A session's linker and its thread.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server/module_cache/digest.hpp"
#include "server/replay/module/link.hpp"
#include "server/replay/module/link_thread.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::SessionOrdinal;

namespace {

constexpr std::chrono::minutes kLong{5};
const std::string kPtx = ".version 7.8 .target sm_75 .visible .entry k() { ret; }";

struct Step {
  std::string call;
  std::thread::id thread;
};
std::vector<Step> steps;  // of the driver's linker; read when no link is running

void note(const char* call) { steps.push_back({call, std::this_thread::get_id()}); }

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};

  // `library`: a real driver's functions, in place of those that only note who calls them.
  explicit Fixture(const server::DriverTable* library = nullptr) {
    steps.clear();
    library ? void(driver.table = *library) : take_notes();
    session.enter_primary();
    const auto text = std::as_bytes(std::span(kPtx));
    session.call<schema::ModuleOffer>(SessionOrdinal::module_offer, [&](schema::ModuleOffer::Builder params) {
      params.setDigest(digest());
      params.setBytes(text.size());
    });
    session.post<schema::ModuleData>(
        SessionOrdinal::module_data,
        [&](schema::ModuleData::Builder params) {
          params.setDigest(digest());
          params.setLast(true);
        },
        text);
  }
  void take_notes() {
    driver.table.cuLinkCreate_v2 = [](unsigned, CUjit_option*, void**, CUlinkState* out) -> CUresult {
      note("create");
      *out = reinterpret_cast<CUlinkState>(uintptr_t{1});
      return CUDA_SUCCESS;
    };
    driver.table.cuLinkAddData_v2 = [](CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*,
                                       void**) -> CUresult {
      note("add");
      return CUDA_SUCCESS;
    };
    driver.table.cuLinkComplete = [](CUlinkState, void** image, size_t* bytes) -> CUresult {
      note("complete");
      static char made[] = "an image";
      *image = made;
      *bytes = sizeof made;
      return CUDA_SUCCESS;
    };
    driver.table.cuLinkDestroy = [](CUlinkState) -> CUresult {
      note("destroy");
      return CUDA_SUCCESS;
    };
  }
  static kj::ArrayPtr<const capnp::byte> digest() {
    static const server::Digest made = server::sha256(std::as_bytes(std::span(kPtx)));
    return kj::arrayPtr(made.data(), made.size());
  }
  CUresult answer(uint64_t sequence) {
    REQUIRE(session.state().link_thread().finish(kLong));
    return CUresult(session.reply(sequence)->as<schema::LinkReply>().getResult());
  }
  CUresult create(uint64_t link) {
    return answer(session.call<schema::LinkCreate>(SessionOrdinal::link_create,
                                                   [&](schema::LinkCreate::Builder params) { params.setState(link); }));
  }
  CUresult add(uint64_t link) {
    return answer(session.call<schema::LinkAdd>(SessionOrdinal::link_add, [&](schema::LinkAdd::Builder params) {
      params.setState(link);
      params.setType(CU_JIT_INPUT_PTX);
      params.setDigest(digest());
    }));
  }
  CUresult complete(uint64_t link) {
    return answer(session.call<schema::LinkState>(SessionOrdinal::link_complete,
                                                  [&](schema::LinkState::Builder params) { params.setState(link); }));
  }
  CUresult destroy(uint64_t link) {
    const uint64_t sequence = session.call<schema::LinkState>(
        SessionOrdinal::link_destroy, [&](schema::LinkState::Builder params) { params.setState(link); });
    return CUresult(session.reply(sequence)->as<schema::Result>().getResult());
  }
  void check_one_thread() const {
    REQUIRE(!steps.empty());
    for (const Step& step : steps) {
      CAPTURE(step.call);
      CHECK(step.thread == steps.front().thread);
      CHECK(step.thread != std::this_thread::get_id());
    }
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture,
                  "all links of a session are made, filled, completed and destroyed on one thread, which is not "
                  "the executor's") {
  for (uint64_t link : {1, 2}) REQUIRE(create(link) == CUDA_SUCCESS);
  for (uint64_t link : {2, 1}) REQUIRE(add(link) == CUDA_SUCCESS);
  REQUIRE(complete(1) == CUDA_SUCCESS);
  destroy(1);
  REQUIRE(create(3) == CUDA_SUCCESS);
  destroy(3);
  CHECK(steps.size() == 8);
  check_one_thread();
}

TEST_CASE_FIXTURE(Fixture, "links that a session leaves behind are destroyed on the thread that made them") {
  REQUIRE(create(1) == CUDA_SUCCESS);
  CHECK(session.end());
  CHECK(steps.back().call == "destroy");
  check_one_thread();
}

#ifdef GPUWIRE_TEST_SOFTWARE_CUDA

TEST_CASE("the software device, which refuses links that change threads, takes the links of a session") {
  void* library = ::dlopen(GPUWIRE_TEST_SOFTWARE_CUDA, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  reinterpret_cast<void (*)(int)>(::dlsym(library, "gpuwire_software_set_strict"))(1);
  server::DriverTable table;
  REQUIRE(server::load_driver_table(library, table) > 400);
  REQUIRE(table.cuInit(0) == CUDA_SUCCESS);
  {
    Fixture fixture(&table);
    for (uint64_t link : {1, 2}) REQUIRE(fixture.create(link) == CUDA_SUCCESS);
    for (uint64_t link : {2, 1}) {
      CHECK(fixture.add(link) == CUDA_SUCCESS);
      CHECK(fixture.complete(link) == CUDA_SUCCESS);
    }
    CHECK(fixture.destroy(1) == CUDA_SUCCESS);
    // The device is strict indeed: the thread that executes the session's frames is another one.
    server::Link* link = fixture.session.state().links().find(2);
    REQUIRE(link);
    CHECK(table.cuLinkDestroy(link->native) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(fixture.session.end());
  }
}

#endif
