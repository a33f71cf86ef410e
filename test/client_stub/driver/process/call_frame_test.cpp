// A thread's call knows whether the call before it is still in progress, further up the stack, or was left by a jump.
#include "client_stub/driver/process/call_frame.hpp"

#include <doctest/doctest.h>

#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstddef>

namespace gpuwire::client {
namespace {

using Body = void (*)();

// Distances between the stacks of two calls: more than the frames of this file's functions and of the client's.
constexpr size_t kDepthsMax = 96;
constexpr size_t kDepthBytes = 16;

[[gnu::noinline]] void call(Body body) {
  CallFrame frame;
  body();
  frame.leave();
}

// The only place that calls call(), so that all calls have one return address.
[[gnu::noinline]] void call_from_one_place(Body body) {
  call(body);
  asm volatile("");
}

[[gnu::noinline]] void call_at_depth(size_t depth, Body body) {
  auto* room = static_cast<volatile char*>(alloca((depth + 1) * kDepthBytes));
  room[0] = 0;
  call_from_one_place(body);
  asm volatile("" : : "r"(room) : "memory");
}

sigjmp_buf g_back;
bool g_in_call = false;
size_t g_depth = 0;

[[gnu::noinline]] void leave_at_depth(size_t depth) {
  if (sigsetjmp(g_back, 0) == 0) call_at_depth(depth, [] { siglongjmp(g_back, 1); });
}

TEST_CASE("a call within another one ends nothing of it, whatever lies between them") {
  for (g_depth = 0; g_depth < kDepthsMax; ++g_depth) {
    call_from_one_place([] {
      call_at_depth(g_depth, [] {});
      g_in_call = in_call();
    });
    CAPTURE(g_depth);
    REQUIRE(g_in_call);
    REQUIRE_FALSE(in_call());
  }
}

void call_in_handler(int) {
  call_from_one_place([] {});
}

TEST_CASE("a call in a signal handler ends nothing of the call that it interrupts") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = call_in_handler;
  REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
  call_from_one_place([] {
    raise(SIGUSR1);
    g_in_call = in_call();
  });
  CHECK(g_in_call);
  CHECK_FALSE(in_call());
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("a call that was left by a jump is over for the next call, at whichever depth that is") {
  for (size_t left = 0; left < kDepthsMax; left += 5) {
    for (size_t next = 0; next < kDepthsMax; ++next) {
      leave_at_depth(left);
      REQUIRE(in_call());
      call_at_depth(next, [] {});
      CAPTURE(left);
      CAPTURE(next);
      REQUIRE_FALSE(in_call());
    }
  }
}

}  // namespace
}  // namespace gpuwire::client
