// In which order a session's calls pass what stands before its driver.
#include "server/driver/session_driver.hpp"

#include <atomic>
#include <future>

#include <doctest/doctest.h>
#include <fcntl.h>

#include "server/ipc/allowance_messages.hpp"
#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {
namespace {

constexpr uint32_t kSlot = 3;
const auto kContext = reinterpret_cast<CUcontext>(0x77);
std::atomic<unsigned> launches{0};

// Its kernels have frames for which the tenant has no allowance yet.
DriverTable fake_driver() {
  DriverTable table;
  table.cuCtxGetCurrent = [](CUcontext* context) { return *context = kContext, CUDA_SUCCESS; };
  table.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
  table.cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; };
  table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute, CUdevice) { return *value = 2048, CUDA_SUCCESS; };
  table.cuCtxGetLimit = [](size_t* value, CUlimit) { return *value = 1024, CUDA_SUCCESS; };
  table.cuFuncGetAttribute = [](int* value, CUfunction_attribute, CUfunction) { return *value = 4096, CUDA_SUCCESS; };
  table.cuEventCreate = [](CUevent* event, unsigned) { return *event = reinterpret_cast<CUevent>(0x99), CUDA_SUCCESS; };
  table.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  table.cuEventQuery = [](CUevent) { return CUDA_SUCCESS; };
  table.cuEventDestroy_v2 = [](CUevent) { return CUDA_SUCCESS; };
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                            void**, void**) { return ++launches, CUDA_SUCCESS; };
  return table;
}

TEST_CASE("a call that waits for the broker's answer about memory has not passed the gate yet") {
  const DriverTable bare = fake_driver();
  auto page = MappedPage::create();
  auto tenant = PageMapping::create();
  REQUIRE(page.has_value());
  REQUIRE(tenant.has_value());
  (*page)->gate = GateWord::of(true, true, {});
  (*tenant)->slots = kSlot + 1;
  (*tenant)->column[0].limit = kPageBytesMax;
  OwnedDescriptor broker, worker;
  REQUIRE(open_ipc_message(broker, worker));
  IpcMessage message;
  REQUIRE(
      attach(message, SpecDescriptor::session_page, OwnedDescriptor(::fcntl(page->descriptor(), F_DUPFD_CLOEXEC, 0))));
  REQUIRE(
      attach(message, SpecDescriptor::tenant_page, OwnedDescriptor(::fcntl(tenant->descriptor(), F_DUPFD_CLOEXEC, 0))));
  SessionSpec order;
  order.devices = {{.index = 0}};
  order.ledger_slot = kSlot;
  auto driver = SessionDriver::open(message, order, bare, {.broker = worker.get()});
  REQUIRE(driver.has_value());
  const DriverTable& table = driver->table(bare);

  auto result = std::async(std::launch::async, [&] {
    driver->gated->gate.enter_executor();
    return table.cuLaunchKernel(reinterpret_cast<CUfunction>(0x55), 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  });
  IpcMessage question;
  REQUIRE(receive_ipc_message(broker.get(), true, question) == IpcMessageReceived::message);
  REQUIRE(question.kind == IpcMessageKind::memory_wanted);
  CHECK((*page)->submissions == 0);
  CHECK(launches == 0);
  (*tenant)->column[0].allowance = kPageBytesMax;
  IpcMessage answer;
  answer.kind = IpcMessageKind::memory_answer;
  answer.id = question.id;
  answer.number = 1;
  driver->ledger->heard(answer);
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK((*page)->submissions == 1);
  CHECK(launches == 1);
}

}  // namespace
}  // namespace gpuwire::server
