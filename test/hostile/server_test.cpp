// A hostile server, and a program that uses it: the server can neither choose the program's memory that is sent nor end
// the program.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "client/custom.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/session/lifecycle.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/wire/message_reader.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/session/fake_server.hpp"

namespace gpuwire::client {
namespace {

using test::FakeServer;
using wire::SessionOrdinal;

constexpr uint64_t kDeviceMemory = 0x7000'0000'0000;
constexpr int kNoContext = 100;  // further exit statuses of the program; results are compared with their low byte

// The program runs in a child process; this process is its server. The function's result is the exit status.
int run(const std::function<int()>& program, const FakeServer::Serve& serve) {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  const std::string server = "tcp://127.0.0.1:" + std::to_string((*listener)->endpoint().port);
  const pid_t child = fork();
  if (child == 0) {
    setenv("GPUWIRE_SERVER", server.c_str(), 1);
    setenv("GPUWIRE_LOOK_AHEAD", "off", 1);
    setenv("GPUWIRE_CACHE_KEY_FILE", "none", 1);
    setenv("GPUWIRE_KEPT_MEMORY", "0", 1);
    setenv("GPUWIRE_ANSWER_TIMEOUT", "1", 1);
    CUcontext context = nullptr;
    if (initialise_process() || custom::cuDevicePrimaryCtxRetain(&context, 0) || custom::cuCtxSetCurrent(context))
      _exit(kNoContext);
    _exit(program() & 0xff);
  }
  int status = -1;
  {
    int descriptor = -1;
    while (descriptor < 0) descriptor = (*listener)->accept().descriptor;
    FakeServer hostile(transport::adopt_stream(descriptor), serve);
  }
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

SessionOrdinal ordinal_of(const FakeServer& server) { return SessionOrdinal(server.header().ordinal); }
bool is_called(const FakeServer& server) { return wire::FrameKind(server.header().kind) == wire::FrameKind::called; }

// Answers every other call with success.
void answer(FakeServer& server) {
  server.skip_bulk();
  if (is_called(server)) server.reply(server.header().sequence);
}

}  // namespace

TEST_CASE("a server that claims 3,600 bytes of parameters for a kernel that has 8 is sent 8 with each launch") {
  std::vector<size_t> sent;
  const int status = run(
      [] {
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        const char* image = ".version 8.0 .target sm_75 .address_size 64 .entry k(.param .u64 p) { ret; }";
        if (custom::cuModuleLoadData(&module, image) || custom::cuModuleGetFunction(&function, module, "k")) return 1;
        uint64_t value = 5;
        void* parameters[] = {&value};
        for (int i = 0; i < 3; ++i) {
          if (custom::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr, false)) return 2;
        }
        return int(custom::cuStreamSynchronize(nullptr, false));
      },
      [&](FakeServer& server) {
        while (server.next()) {
          if (ordinal_of(server) == SessionOrdinal::module_function) {
            capnp::MallocMessageBuilder reply;
            auto facts = reply.initRoot<schema::FunctionFacts>();
            facts.initParameterOffsets(1);
            facts.initParameterSizes(1).set(0, 3600);
            server.reply(server.header().sequence, reply);
            continue;
          }
          if (ordinal_of(server) == SessionOrdinal::launch) {
            wire::SegmentReader message(server.message());
            sent.push_back(message.getRoot<schema::Launch>().getParameters().size());
          }
          answer(server);
        }
      });
  CHECK(status == CUDA_SUCCESS);
  CHECK(sent == std::vector<size_t>{8, 8, 8});
}

TEST_CASE("a server that answers a copy with success and without its bytes gets the program an error, not silence") {
  for (size_t brings : {0, 99}) {
    const int status = run(
        [] {
          address_map().insert({.base = kDeviceMemory, .bytes = 4096, .kind = RangeKind::device});
          std::array<char, 100> to{};
          return int(custom::cuMemcpyDtoH_v2(to.data(), kDeviceMemory, to.size(), false));
        },
        [&](FakeServer& server) {
          while (server.next()) {
            if (ordinal_of(server) == SessionOrdinal::copy_from_device)
              server.reply(server.header().sequence, CUDA_SUCCESS, std::vector<std::byte>(brings));
            else answer(server);
          }
        });
    CHECK(status == CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
}

namespace {

// Adds a host function behind the work of a stream, and waits for it.
int wait_for_host_function() {
  if (custom::cuLaunchHostFunc(
          nullptr, [](void*) {}, nullptr, false))
    return 1;
  return int(custom::cuStreamSynchronize(nullptr, false));
}

// Answers all frames before the host function, and none after it.
FakeServer::Serve falls_silent(const std::function<void(FakeServer&)>& at_host_function) {
  return [=](FakeServer& server) {
    for (bool silent = false; server.next();) {
      if (!silent && ordinal_of(server) == SessionOrdinal::host_function) {
        silent = true;
        at_host_function(server);
      }
      if (!silent) answer(server);
      else server.skip_bulk();
    }
  };
}

}  // namespace

TEST_CASE("a server that calls a host function which the program does not have does not keep it waiting for its own") {
  CHECK(run(wait_for_host_function, falls_silent([](FakeServer& server) {
              capnp::MallocMessageBuilder message;
              message.initRoot<schema::HostCallback>().setCallback(0xdeadbeef);
              server.notice(wire::NoticeOrdinal::host_callback, message);
            })) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_CASE("a server that lives and never answers a call does not keep the program for ever") {
  CHECK(run(wait_for_host_function, falls_silent([](FakeServer&) {})) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

}  // namespace gpuwire::client
