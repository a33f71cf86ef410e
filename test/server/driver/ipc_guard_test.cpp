#include "server/driver/ipc_guard.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include <unistd.h>

#include "server/driver_table.hpp"

using namespace gpuwire::server;

namespace {

// The broker's table, for one process.
class Exchange final : public ShareExchange {
 public:
  bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int) override {
    ++published;
    return room && kept_.emplace(token, std::pair(kind, tenant)).second;
  }
  int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) override {
    auto found = kept_.find(token);
    return found != kept_.end() && found->second == std::pair(kind, tenant) ? ::dup(STDERR_FILENO) : -1;
  }
  void withdraw(const ShareToken&) override {}

  int published = 0;
  bool room = true;

 private:
  std::map<ShareToken, std::pair<ShareKind, std::string>> kept_;
};

int opened = 0;

CUresult get_memory(CUipcMemHandle* handle, CUdeviceptr address) {
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->reserved, &address, sizeof address);
  return CUDA_SUCCESS;
}
CUresult open_memory(CUdeviceptr* address, CUipcMemHandle handle, unsigned) {
  ++opened;
  std::memcpy(address, handle.reserved, sizeof *address);
  return CUDA_SUCCESS;
}
CUresult get_event(CUipcEventHandle* handle, CUevent event) {
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->reserved, &event, sizeof event);
  return CUDA_SUCCESS;
}
CUresult open_event(CUevent* event, CUipcEventHandle handle) {
  ++opened;
  std::memcpy(event, handle.reserved, sizeof *event);
  return CUDA_SUCCESS;
}

DriverTable driver() {
  DriverTable table;
  table.cuIpcGetMemHandle = get_memory;
  table.cuIpcOpenMemHandle_v2 = open_memory;
  table.cuIpcGetEventHandle = get_event;
  table.cuIpcOpenEventHandle = open_event;
  opened = 0;
  return table;
}

// Exports memory like a session of this tenant.
CUresult made_by(Exchange& exchange, const char* tenant, CUdeviceptr address, CUipcMemHandle& handle) {
  IpcGuard guard(exchange);
  DriverTable table = driver();
  guard.put_before(table);
  guard.belongs_to(tenant);
  return table.cuIpcGetMemHandle(&handle, address);
}
CUresult opened_by(Exchange& exchange, const char* tenant, const CUipcMemHandle& handle) {
  IpcGuard guard(exchange);
  DriverTable table = driver();
  guard.put_before(table);
  guard.belongs_to(tenant);
  CUdeviceptr address = 0;
  return table.cuIpcOpenMemHandle_v2(&address, handle, 0);
}
CUresult event_made_by(Exchange& exchange, const char* tenant, CUipcEventHandle& handle) {
  IpcGuard guard(exchange);
  DriverTable table = driver();
  guard.put_before(table);
  guard.belongs_to(tenant);
  return table.cuIpcGetEventHandle(&handle, reinterpret_cast<CUevent>(4096));
}
CUresult event_opened_by(Exchange& exchange, const char* tenant, const CUipcEventHandle& handle) {
  IpcGuard guard(exchange);
  DriverTable table = driver();
  guard.put_before(table);
  guard.belongs_to(tenant);
  CUevent event = nullptr;
  return table.cuIpcOpenEventHandle(&event, handle);
}

}  // namespace

TEST_CASE("an IPC handle opens in a session of the tenant that made it, and in no other") {
  Exchange exchange;
  CUipcMemHandle handle;
  REQUIRE(made_by(exchange, "a", 4096, handle) == CUDA_SUCCESS);
  CHECK(opened_by(exchange, "a", handle) == CUDA_SUCCESS);
  CHECK(opened == 1);
  CHECK(opened_by(exchange, "b", handle) == CUDA_ERROR_INVALID_VALUE);
  CHECK(opened == 0);
}

TEST_CASE("an IPC handle that nobody has made never reaches the driver") {
  Exchange exchange;
  CUipcMemHandle guessed{};
  guessed.reserved[0] = 1;
  CHECK(opened_by(exchange, "a", guessed) == CUDA_ERROR_INVALID_VALUE);
  CHECK(opened == 0);
}

TEST_CASE("an event that nobody has made fails to map, as NVIDIA's driver says, and so does another tenant's") {
  Exchange exchange;
  CHECK(event_opened_by(exchange, "a", CUipcEventHandle{}) == CUDA_ERROR_MAP_FAILED);
  CUipcEventHandle handle;
  REQUIRE(event_made_by(exchange, "a", handle) == CUDA_SUCCESS);
  CHECK(event_opened_by(exchange, "b", handle) == CUDA_ERROR_MAP_FAILED);
  CHECK(opened == 0);
  CHECK(event_opened_by(exchange, "a", handle) == CUDA_SUCCESS);
  CHECK(opened == 1);
}

TEST_CASE("a handle that the driver gives out twice is told to the broker once") {
  Exchange exchange;
  IpcGuard guard(exchange);
  DriverTable table = driver();
  guard.put_before(table);
  CUipcMemHandle handle;
  CHECK(table.cuIpcGetMemHandle(&handle, 4096) == CUDA_SUCCESS);
  CHECK(table.cuIpcGetMemHandle(&handle, 4096) == CUDA_SUCCESS);
  CHECK(exchange.published == 1);
}

TEST_CASE("the driver's own refusal is handed on, and a broker without room is out of memory") {
  Exchange exchange;
  CUipcMemHandle handle;
  CHECK(made_by(exchange, "a", 0, handle) == CUDA_ERROR_INVALID_VALUE);
  CHECK(exchange.published == 0);
  exchange.room = false;
  CHECK(made_by(exchange, "a", 4096, handle) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("functions that the driver lacks stay missing") {
  Exchange exchange;
  IpcGuard guard(exchange);
  DriverTable table;
  guard.put_before(table);
  CHECK_FALSE(bool(table.cuIpcGetMemHandle));
  CHECK_FALSE(bool(table.cuIpcOpenEventHandle));
}
