#include <cstring>
#include <string>
#include <thread>

#include "test/server/software_device/driver/fixture.hpp"

extern "C" void gpuwire_software_set_strict(int on);
extern "C" void gpuwire_software_set_output(void (*sink)(void* user, int fd, const char* text, size_t bytes),
                                            void* user);

using namespace gpuwire::software_device::test;

namespace {

struct Strict {
  Strict() { gpuwire_software_set_strict(1); }
  ~Strict() { gpuwire_software_set_strict(0); }
};

struct Log {
  std::string text;
  Log() { gpuwire_software_set_output(take, this); }
  ~Log() { gpuwire_software_set_output(nullptr, nullptr); }
  static void take(void* self, int, const char* text, size_t bytes) {
    static_cast<Log*>(self)->text.append(text, bytes);
  }
};

CUlinkState make_link() {
  CUlinkState link = nullptr;
  REQUIRE(cuLinkCreate(0, nullptr, nullptr, &link) == CUDA_SUCCESS);
  return link;
}

CUresult add(CUlinkState link) {
  return cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(kPtx), std::strlen(kPtx) + 1, "ptx", 0, nullptr,
                       nullptr);
}

CUresult complete(CUlinkState link) {
  void* image = nullptr;
  return cuLinkComplete(link, &image, nullptr);
}

// On a thread of its own, in the same context.
template <typename Body>
CUresult elsewhere(const CurrentContext& context, Body&& body) {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] { result = cuCtxSetCurrent(context.handle) == CUDA_SUCCESS ? body() : CUDA_ERROR_UNKNOWN; }).join();
  return result;
}

}  // namespace

TEST_CASE("A program may use a link on every thread") {
  const CurrentContext context;
  const CUlinkState link = make_link();
  CHECK(elsewhere(context, [&] { return add(link); }) == CUDA_SUCCESS);
  CHECK(complete(link) == CUDA_SUCCESS);
  CHECK(elsewhere(context, [&] { return cuLinkDestroy(link); }) == CUDA_SUCCESS);
}

TEST_CASE("A strict device refuses a link on another thread than the one that made it, and says so") {
  const CurrentContext context;
  const Strict strict;
  Log log;
  const CUlinkState link = make_link();
  CHECK(elsewhere(context, [&] { return add(link); }) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(log.text.find("a link is used on another thread than the one that made it") != std::string::npos);
  CHECK(elsewhere(context, [&] { return complete(link); }) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(elsewhere(context, [&] { return cuLinkDestroy(link); }) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(add(link) == CUDA_SUCCESS);
  CHECK(complete(link) == CUDA_SUCCESS);
  CHECK(cuLinkDestroy(link) == CUDA_SUCCESS);
}

TEST_CASE("A strict device takes a later thread for another one, though the maker of the link has ended") {
  const CurrentContext context;
  const Strict strict;
  CUlinkState link = nullptr;
  REQUIRE(elsewhere(context, [&] { return cuLinkCreate(0, nullptr, nullptr, &link); }) == CUDA_SUCCESS);
  for (int i = 0; i < 10; ++i) CHECK(elsewhere(context, [&] { return add(link); }) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("A strict device takes links of several threads beside each other") {
  const CurrentContext context;
  const Strict strict;
  const CUlinkState own = make_link();
  CHECK(elsewhere(context, [&] {
          const CUlinkState link = make_link();
          CHECK(add(link) == CUDA_SUCCESS);
          CHECK(complete(link) == CUDA_SUCCESS);
          return cuLinkDestroy(link);
        }) == CUDA_SUCCESS);
  CHECK(add(own) == CUDA_SUCCESS);
  CHECK(cuLinkDestroy(own) == CUDA_SUCCESS);
}
