// A gate in front of a FakeGpu; the test plays the GPU scheduler.
#pragma once

#include <chrono>
#include <future>

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "fake_gpu.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/gate/page/futex.hpp"
#include "server/gate/gate.hpp"
#include "server/gate/gated_driver.hpp"
#include "server/gate/page/session_page.hpp"
#include "test/support/becomes.hpp"

using gpuwire::test::becomes;

struct GateFixture {
  FakeGpu gpu;
  gpuwire::server::SessionPage page;
  gpuwire::server::OwnedDescriptor doorbell{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  gpuwire::server::DriverTable table = gpu.table();
  gpuwire::server::Gate gate{{.page = &page, .doorbell = doorbell.get(), .driver = &gpu.table(), .cores = 1}};
  CUstream stream = FakeGpu::stream(0x51);

  GateFixture() {
    gpuwire::server::put_gate_before(table, gate);
    gate.enter_executor();
  }

  // Sets the gate like the GPU scheduler.
  void set(bool open, bool metered = true, std::chrono::nanoseconds bound = {}) {
    if (open) page.opening.fetch_add(1, std::memory_order_release);
    page.gate.store(gpuwire::server::GateWord::of(open, metered, bound), std::memory_order_seq_cst);
    page.attention.fetch_add(1, std::memory_order_release);
    gpuwire::server::futex_wake(page.gate);
    gpuwire::server::futex_wake(page.attention);
  }
  void set_and_wait(bool open, bool metered = true, std::chrono::nanoseconds bound = {}) {
    set(open, metered, bound);
    uint32_t said = page.attention.load();
    REQUIRE(becomes([&] { return page.answered.load() >= said; }));
  }
  CUresult launch(uintptr_t function = 1) {
    return table.cuLaunchKernel(reinterpret_cast<CUfunction>(function), 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr);
  }
  // Launches on a thread that the gate holds up.
  std::future<CUresult> launch_elsewhere(uintptr_t function = 1, CUcontext context = FakeGpu::context()) {
    return std::async(std::launch::async, [this, function, context] {
      gate.enter_executor();
      table.cuCtxSetCurrent(context);
      return launch(function);
    });
  }
  bool idle() {
    return becomes([&] { return page.in_flight.load() == 0; });
  }
  bool rang() {
    uint64_t count = 0;
    return becomes([&] { return ::read(doorbell.get(), &count, sizeof count) == ssize_t(sizeof count); });
  }
  void forget_rings() {
    uint64_t count = 0;
    while (::read(doorbell.get(), &count, sizeof count) > 0) {}
  }
};

// Work at the bound is let in when no work has ended for kStall, on a busy machine perhaps before the test continues.
// So an attempt returns whether it saw the work held up, and is otherwise repeated at a new gate.
inline constexpr int kAttempts = 200;
template <class Attempt>
bool is_seen(Attempt attempt) {
  for (int i = 0; i < kAttempts; ++i) {
    GateFixture fixture;
    fixture.set_and_wait(true, true, std::chrono::microseconds(500));
    REQUIRE(fixture.idle());
    bool seen = attempt(fixture);
    fixture.gpu.finish_all();
    REQUIRE(fixture.idle());
    if (seen) return true;
  }
  return false;
}
