// A process over a fake session, for the length of one test.
#pragma once

#include <doctest/doctest.h>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/lifecycle.hpp"
#include "client_stub/driver/process/process.hpp"
#include "test/client_stub/driver/session_parts.hpp"
#include "test/support/fake_session.hpp"

namespace gpuwire::test {

struct FakeProcess {
  explicit FakeProcess(int devices = 1, const char* visible = nullptr) {
    auto made = std::make_unique<FakeSession>(fake_facts(devices));
    session = made.get();
    REQUIRE(client::install_process(std::move(made), visible) == CUDA_SUCCESS);
  }
  ~FakeProcess() {
    if (client::ThreadState* thread = client::thread_state()) *thread = client::ThreadState{};
    client::uninstall_process_for_test();
  }
  FakeProcess(const FakeProcess&) = delete;

  FakeSession* session;
};

}  // namespace gpuwire::test
