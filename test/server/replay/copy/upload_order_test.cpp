#include "server/replay/copy/upload_order.hpp"

#include <map>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

namespace gpuwire::server {
namespace {

CUstream stream_of(uintptr_t number) { return reinterpret_cast<CUstream>(number); }
CUevent event_of(uintptr_t number) { return reinterpret_cast<CUevent>(number); }

const CUstream kBlocking = stream_of(0x10), kBeside = stream_of(0x20), kOther = stream_of(0x30);
const CUevent kFirst = event_of(0x91), kSecond = event_of(0x92);

// The fake driver's state, which its functions reach without an argument.
std::vector<std::string> done;
std::map<CUevent, bool> over;
CUstream capturing = nullptr;

std::string name_of(const char* what, const void* of) {
  return what + std::string(" ") + std::to_string(reinterpret_cast<uintptr_t>(of));
}

// The order of uploads in front of a driver that records its calls.
struct Fixture {
  UploadOrder order;
  DriverTable table;

  Fixture() {
    done.clear();
    over.clear();
    capturing = nullptr;
    table.cuEventQuery = [](CUevent event) { return over[event] ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
    table.cuStreamGetFlags = [](CUstream stream, unsigned* flags) {
      // As NVIDIA's driver does, which invalidates the capture, too.
      if (stream == capturing)
        return done.push_back(name_of("invalid capture of", stream)), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      *flags = stream == kBlocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
      return CUDA_SUCCESS;
    };
    table.cuStreamIsCapturing = [](CUstream stream, CUstreamCaptureStatus* status) {
      *status = stream == capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    };
    table.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
      done.push_back(name_of("stream", stream) + name_of(" waits for", event));
      return CUDA_SUCCESS;
    };
    table.cuMemsetD8Async = [](CUdeviceptr, unsigned char, size_t, CUstream stream) {
      return done.push_back(name_of("work in", stream)), CUDA_SUCCESS;
    };
    table.cuStreamDestroy_v2 = [](CUstream) { return CUDA_SUCCESS; };
    order.put_before(table);
  }
  void work(CUstream stream) { REQUIRE(table.cuMemsetD8Async(0, 0, 1, stream) == CUDA_SUCCESS); }
  // Returns the calls in front of the work in the stream, and the work.
  std::vector<std::string> work_seen(CUstream stream) {
    done.clear();
    work(stream);
    return done;
  }
};

std::vector<std::string> alone(CUstream stream) { return {name_of("work in", stream)}; }
std::vector<std::string> behind(CUstream stream, CUevent event) {
  return {name_of("stream", stream) + name_of(" waits for", event), name_of("work in", stream)};
}

TEST_CASE("Before it is given work, a stream that does not wait for the NULL stream waits for the newest copy") {
  Fixture fixture;
  CHECK(fixture.work_seen(kBeside) == alone(kBeside));
  fixture.order.told(kFirst, nullptr);
  fixture.order.told(kSecond, nullptr);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kSecond));
  CHECK(fixture.work_seen(kOther) == behind(kOther, kSecond));
}

TEST_CASE("A stream waits once for a copy, and again for the next one") {
  Fixture fixture;
  fixture.order.told(kFirst, nullptr);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kFirst));
  CHECK(fixture.work_seen(kBeside) == alone(kBeside));
  fixture.order.told(kSecond, nullptr);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kSecond));
}

TEST_CASE("A stream that gets the handle of a destroyed stream waits for the copy for which that stream has waited") {
  Fixture fixture;
  fixture.order.told(kFirst, nullptr);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kFirst));
  REQUIRE(fixture.table.cuStreamDestroy_v2(kBeside) == CUDA_SUCCESS);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kFirst));
}

TEST_CASE("Streams that wait for the NULL stream, and that itself, are given their work as it comes") {
  Fixture fixture;
  fixture.order.told(kFirst, nullptr);
  for (CUstream stream : {kBlocking, CUstream(nullptr), CU_STREAM_LEGACY})
    CHECK(fixture.work_seen(stream) == alone(stream));
}

TEST_CASE("Nobody waits for a copy that is over, and who kept its event lets go of it") {
  Fixture fixture;
  auto keeper = std::make_shared<int>();
  fixture.order.told(kFirst, keeper);
  over[kFirst] = true;
  CHECK(fixture.work_seen(kBeside) == alone(kBeside));
  CHECK_FALSE(fixture.order.pending());
  CHECK(keeper.use_count() == 1);
}

TEST_CASE("A stream waits for no copy while it captures, and for the newest one once it works again") {
  Fixture fixture;
  fixture.order.told(kFirst, nullptr);
  capturing = kBeside;
  CHECK(fixture.work_seen(kBeside) == alone(kBeside));
  capturing = nullptr;
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kFirst));
}

TEST_CASE("The server's own streams, and work of its other threads, are beside all copies") {
  Fixture fixture;
  fixture.order.leave_out(kBeside);
  fixture.order.told(kFirst, nullptr);
  CHECK(fixture.work_seen(kBeside) == alone(kBeside));
  std::thread([&] { CHECK(fixture.work_seen(kOther) == alone(kOther)); }).join();
}

TEST_CASE("With a context its copies are forgotten, and its streams, of which another may get the address") {
  Fixture fixture;
  fixture.order.leave_out(kBeside);
  fixture.order.told(kFirst, nullptr);
  fixture.order.context_ends();
  CHECK_FALSE(fixture.order.pending());
  CHECK(fixture.work_seen(kOther) == alone(kOther));
  fixture.order.told(kSecond, nullptr);
  CHECK(fixture.work_seen(kBeside) == behind(kBeside, kSecond));
}

}  // namespace
}  // namespace gpuwire::server
