// The order in which a session's calls pass the layers in front of the library: the order of uploads, the IPC guard,
// the ledger, the gate.
#include "server/driver/driver_stack.hpp"

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/ledger/page/tenant_page.hpp"

namespace gpuwire::server {
namespace {

constexpr uint32_t kSlot = 3;
const auto kContext = reinterpret_cast<CUcontext>(0x77);
std::atomic<unsigned> launches{0}, opened{0};
std::vector<std::string> passed;  // the layers that a call's answer has passed

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
  table.cuIpcGetMemHandle = [](CUipcMemHandle*, CUdeviceptr) { return passed.push_back("library"), CUDA_SUCCESS; };
  // The ledger calls this for memory that other sessions are about to import.
  table.cuMemGetAddressRange_v2 = [](CUdeviceptr*, size_t*, CUdeviceptr) {
    return passed.push_back("ledger"), CUDA_SUCCESS;
  };
  table.cuIpcOpenMemHandle_v2 = [](CUdeviceptr*, CUipcMemHandle, unsigned) { return ++opened, CUDA_SUCCESS; };
  return table;
}

// An exchange that knows no handle.
class NobodysHandles final : public ShareExchange {
 public:
  bool publish(const ShareToken&, ShareKind, const std::string&, int) override {
    return passed.push_back("guard"), true;
  }
  int claim(const ShareToken&, ShareKind, const std::string&) override {
    return claimed ? ::eventfd(0, EFD_CLOEXEC) : -1;
  }
  void withdraw(const ShareToken&) override {}
  bool claimed = false;
};

// The pages of one session, whose allowance is nothing yet, and the stack on them.
struct Fixture {
  DriverTable library = fake_driver();
  SharedPage<SessionPage> page = SharedPage<SessionPage>::create().value();
  SharedPage<TenantPage> tenant = SharedPage<TenantPage>::create().value();
  NobodysHandles handles;
  UploadOrder order;
  IpcGuard guard{handles};
  std::optional<ipc::Channel> to_worker, to_broker;
  std::optional<ipc::BlockingRequests> requests;
  DriverStack stack;

  explicit Fixture(bool evicts = false) {
    page->gate = GateWord::of(true, true, {});
    tenant->slots = kSlot + 1;
    tenant->column[0].limit = kPageBytesMax;
    OwnedDescriptor broker, worker;
    REQUIRE(ipc::open_pair(broker, worker));
    to_worker.emplace(std::move(broker), ipc::Speaker::worker, 1);
    to_broker.emplace(std::move(worker), ipc::Speaker::broker, 1);
    requests.emplace(*to_broker);
    ipc::SessionDescriptors descriptors;
    descriptors.session_page.reset(::dup(page.descriptor()));
    descriptors.tenant_page.reset(::dup(tenant.descriptor()));
    SessionSpec spec;
    spec.devices = {{.index = 0}};
    spec.ledger_slot = kSlot;
    spec.evicts = evicts;
    auto opened =
        DriverStack::open(descriptors, spec, library, order, guard, {.broker = *to_broker, .requests = *requests});
    REQUIRE(opened.has_value());
    stack = std::move(*opened);
  }
  // Whether the ledger has noted an import of another session's memory.
  bool ledger_has_seen_an_import() const { return tenant->slot[kSlot].imports != 0; }
};

TEST_CASE("the guard of handles stands before the ledger: it is the last to see what the library answers") {
  Fixture fixture;
  CUipcMemHandle handle{};
  passed.clear();
  CHECK(fixture.stack.table().cuIpcGetMemHandle(&handle, 0x1000) == CUDA_SUCCESS);
  CHECK(passed == std::vector<std::string>{"library", "ledger", "guard"});
}

TEST_CASE("a handle that is another tenant's reaches neither the ledger nor the library") {
  Fixture fixture;
  CUdeviceptr address = 0;
  const unsigned before = opened;
  CHECK(fixture.stack.table().cuIpcOpenMemHandle_v2(&address, {}, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(opened == before);
  CHECK_FALSE(fixture.ledger_has_seen_an_import());
  fixture.handles.claimed = true;
  CHECK(fixture.stack.table().cuIpcOpenMemHandle_v2(&address, {}, 0) == CUDA_SUCCESS);
  CHECK(opened == before + 1);
  CHECK(fixture.ledger_has_seen_an_import());
}

TEST_CASE("a call that waits for the broker's answer about memory has not passed the gate yet") {
  Fixture fixture;
  const unsigned before = launches;
  auto result = std::async(std::launch::async, [&] {
    fixture.stack.gated()->gate.enter_executor();
    return fixture.stack.table().cuLaunchKernel(reinterpret_cast<CUfunction>(0x55), 1, 1, 1, 32, 1, 1, 0, nullptr,
                                                nullptr, nullptr);
  });
  auto question = fixture.to_worker->await();
  REQUIRE(question);
  REQUIRE(std::holds_alternative<ipc::MemoryWanted>(*question));
  CHECK(fixture.page->submissions == 0);
  CHECK(launches == before);
  fixture.tenant->column[0].allowance = kPageBytesMax;
  fixture.requests->on_message({std::get<ipc::MemoryWanted>(*question).request, true, {}});
  CHECK(result.get() == CUDA_SUCCESS);
  CHECK(fixture.page->submissions == 1);
  CHECK(launches == before + 1);
}

TEST_CASE("evictable memory stands before the library alone: the ledger charges for it as for the driver's own") {
  Fixture fixture(true);
  REQUIRE(fixture.stack.evictable());
  CHECK((fixture.stack.evictable()->driver().cuIpcGetMemHandle == fixture.library.cuIpcGetMemHandle));
  CHECK((fixture.stack.gated()->table.cuIpcGetMemHandle != fixture.library.cuIpcGetMemHandle));
  CUipcMemHandle handle{};
  passed.clear();
  CHECK(fixture.stack.table().cuIpcGetMemHandle(&handle, 0x1000) == CUDA_SUCCESS);
  CHECK(passed == std::vector<std::string>{"library", "ledger", "guard"});
}

TEST_CASE("without pages there are neither ledger nor gate, and the guard stands all the same") {
  DriverTable library = fake_driver();
  NobodysHandles handles;
  UploadOrder order;
  IpcGuard guard(handles);
  OwnedDescriptor broker, worker;
  REQUIRE(ipc::open_pair(broker, worker));
  ipc::Channel channel(std::move(worker), ipc::Speaker::broker, 1);
  ipc::BlockingRequests requests(channel);
  ipc::SessionDescriptors none;
  auto stack = DriverStack::open(none, {}, library, order, guard, {.broker = channel, .requests = requests});
  REQUIRE(stack.has_value());
  CHECK_FALSE(stack->gated());
  CHECK_FALSE(stack->ledger());
  CHECK_FALSE(stack->evictable());
  CHECK((order.driver().cuLaunchKernel == library.cuLaunchKernel));
  CUdeviceptr address = 0;
  CHECK(stack->table().cuIpcOpenMemHandle_v2(&address, {}, 0) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gpuwire::server
