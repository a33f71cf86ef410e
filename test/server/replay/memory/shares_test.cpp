// A client opens memory of other processes.
#include <doctest/doctest.h>

#include <cstring>

#include "schema/session.capnp.h"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::SessionOrdinal;

namespace {

constexpr CUdeviceptr kOpened = 0x7000'0000'1000;
CUresult g_open_result, g_range_result;

struct Opening {
  FakeDriver driver;
  FakeSession session{driver};

  Opening() {
    g_open_result = g_range_result = CUDA_SUCCESS;
    driver.table.cuIpcOpenMemHandle_v2 = [](CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
      *address = kOpened + CUdeviceptr(handle.reserved[0]);
      return g_open_result;
    };
    driver.table.cuMemGetAddressRange_v2 = [](CUdeviceptr* base, size_t* bytes, CUdeviceptr) {
      *base = kOpened;
      *bytes = 64u << 20;
      return g_range_result;
    };
    session.enter_primary();
  }
  schema::ModuleGlobalReply::Reader open(size_t handle_bytes = sizeof(CUipcMemHandle)) {
    CUipcMemHandle handle{};
    handle.reserved[0] = 64;  // the address within the block
    const uint64_t sequence = session.call<schema::OpenIpcMemory>(
        SessionOrdinal::open_ipc_memory, [&](schema::OpenIpcMemory::Builder params) {
          std::memcpy(params.initHandle(unsigned(handle_bytes)).begin(), &handle, handle_bytes);
          params.setFlags(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        });
    return session.reply(sequence)->as<schema::ModuleGlobalReply>();
  }
};

}  // namespace

TEST_CASE("A client that opens memory of another process is told how much of it is behind the address") {
  Opening opening;
  auto told = opening.open();
  CHECK(told.getResult() == CUDA_SUCCESS);
  CHECK(told.getAddress() == kOpened + 64);
  CHECK(told.getBytes() == (64u << 20) - 64);
}

TEST_CASE("Where the driver does not say how much memory was opened, the client is told nothing of it") {
  Opening opening;
  g_range_result = CUDA_ERROR_NOT_FOUND;
  auto told = opening.open();
  CHECK(told.getResult() == CUDA_SUCCESS);
  CHECK(told.getBytes() == 0);
  g_open_result = CUDA_ERROR_INVALID_CONTEXT;
  CHECK(opening.open().getResult() == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("A handle of another size than the driver's ends the session") {
  Opening opening;
  CHECK_THROWS_AS(opening.open(sizeof(CUipcMemHandle) - 1), server::ProtocolFault);
}
