// The input consists of a client's frames within its session, which the replay executes one after the other. The driver
// below accepts every call and has no device memory; it reads and writes the server's memory that the replay passes to
// it completely. A session uses at most its tenant's limit of that memory, and leaves none allocated.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "protocol/wire/frame_decoder.hpp"
#include "protocol/wire/limits.hpp"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/server/replay/fake_session.hpp"

namespace {

using namespace gpuwire;
using test::FakeDriver;
using test::FakeSession;

constexpr uint64_t kHostBytesMax = 4u << 20;

// The tenant's.
class Account final : public server::HostMemory {
 public:
  ~Account() override {
    if (taken_ != 0) std::abort();
  }
  bool reserve(uint64_t bytes) override {
    if (bytes > kHostBytesMax - taken_) return false;
    taken_ += bytes;
    return true;
  }
  void give_back(uint64_t bytes) override {
    if (bytes > taken_) std::abort();
    taken_ -= bytes;
  }

 private:
  uint64_t taken_ = 0;
};

void read_all(const void* from, size_t bytes) {
  static volatile unsigned char sum;
  for (size_t i = 0; i < bytes; ++i) sum = sum + static_cast<const unsigned char*>(from)[i];
}

CUresult CUDAAPI to_device(CUdeviceptr, const void* from, size_t bytes, CUstream) {
  read_all(from, bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI to_host(void* to, CUdeviceptr, size_t bytes, CUstream) {
  std::memset(to, 7, bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI copy_3d(const CUDA_MEMCPY3D* copy, CUstream) {
  if (copy->WidthInBytes == 0) return CUDA_SUCCESS;
  for (size_t z = 0; z < copy->Depth; ++z) {
    for (size_t y = 0; y < copy->Height; ++y) {
      if (copy->srcMemoryType == CU_MEMORYTYPE_HOST)
        read_all(static_cast<const char*>(copy->srcHost) + copy->srcXInBytes +
                     ((z + copy->srcZ) * copy->srcHeight + y + copy->srcY) * copy->srcPitch,
                 copy->WidthInBytes);
      if (copy->dstMemoryType == CU_MEMORYTYPE_HOST)
        std::memset(static_cast<char*>(copy->dstHost) + copy->dstXInBytes +
                        ((z + copy->dstZ) * copy->dstHeight + y + copy->dstY) * copy->dstPitch,
                    7, copy->WidthInBytes);
    }
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI load_module(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  *module = reinterpret_cast<CUmodule>(uintptr_t{0x5000});
  return CUDA_SUCCESS;
}

CUresult CUDAAPI load_library(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*,
                              void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(uintptr_t{0x6000});
  return CUDA_SUCCESS;
}

CUresult CUDAAPI unload_module(CUmodule) { return CUDA_SUCCESS; }
CUresult CUDAAPI unload_library(CUlibrary) { return CUDA_SUCCESS; }

void use_no_device_memory(server::DriverTable& table) {
  table.cuMemcpyHtoDAsync_v2 = to_device;
  table.cuMemcpyDtoHAsync_v2 = to_host;
  table.cuMemcpy3DAsync_v2 = copy_3d;
  table.cuModuleLoadDataEx = load_module;
  table.cuModuleUnload = unload_module;
  table.cuLibraryLoadData = load_library;
  table.cuLibraryUnload = unload_library;
  // Calls for which a stream would wait forever, because nobody answers here.
  table.cuLaunchHostFunc = nullptr;
  table.cuStreamAddCallback = nullptr;
}

// Returns the bytes after the message of the present frame; nothing: the input ends before.
std::optional<std::vector<std::byte>> bulk_of(wire::FrameDecoder& decoder, std::span<const std::byte>& rest) {
  if (decoder.bulk_left() > decoder.buffered_bulk().size() + rest.size()) return std::nullopt;
  std::vector<std::byte> bulk(decoder.buffered_bulk().begin(), decoder.buffered_bulk().end());
  decoder.take_bulk(bulk.size());
  const size_t more = size_t(decoder.bulk_left());
  bulk.insert(bulk.end(), rest.begin(), rest.begin() + ptrdiff_t(more));
  decoder.bulk_read_elsewhere(more);
  rest = rest.subspan(more);
  return bulk;
}

// The options in the first byte of an input.
struct Choices {
  bool waits_at_once, holds_work, in_primary;
};

// Runs one session. True: a frame has ended it. False: the input has ended.
bool execute(FakeSession& session, wire::FrameDecoder& decoder, std::span<const std::byte>& bytes, Choices choices) {
  for (;;) {
    switch (decoder.next()) {
      case wire::FrameDecoder::Next::fault: return false;
      case wire::FrameDecoder::Next::frame: {
        ++g_frames_decoded;
        wire::FrameHeader header = decoder.header();
        if (choices.in_primary && header.context == 0) header.context = session.frame_context;
        std::vector<capnp::word> words(decoder.message().begin(), decoder.message().end());
        auto bulk = bulk_of(decoder, bytes);
        if (!bulk) return false;
        if (!session.execute(header, words, *bulk)) return true;
        session.watcher().poll();
        break;
      }
      case wire::FrameDecoder::Next::need_more: {
        auto space = decoder.space();
        size_t count = std::min(space.size(), bytes.size());
        if (count == 0) return false;
        std::memcpy(space.data(), bytes.data(), count);
        decoder.filled(count);
        bytes = bytes.subspan(count);
      }
    }
  }
}

}  // namespace

// After a frame that ends its session, another session executes the rest of the input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Choices choices{
      .waits_at_once = bool(data[0] & 1), .holds_work = bool(data[0] & 2), .in_primary = bool(data[0] & 4)};
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  wire::FrameDecoder decoder(wire::Sender::client);
  for (bool more = true; more;) {
    Account account;
    FakeDriver driver;
    use_no_device_memory(driver.table);
    driver.hold = choices.holds_work;
    FakeSession session(driver, {}, &account);
    // A call that waits immediately for work that the driver holds would wait forever.
    session.waiters_at_once = choices.waits_at_once && !choices.holds_work;
    if (choices.in_primary) session.enter_primary();
    more = execute(session, decoder, bytes, choices);
    driver.hold = false;
    driver.release();
    session.run_waiters();
    while (session.watcher().poll() > 0) {}
    session.end();
  }
  return 0;
}
