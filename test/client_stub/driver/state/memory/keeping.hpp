// A program with cached freed memory and prefetched memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/api_pool.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {

using Clock = CachedBlock::Clock;

inline constexpr uint64_t kBytes = 1 << 20;
inline constexpr uint32_t kMemGetInfo = 1804, kMemAllocAsync = 2400, kMemAllocFromPoolAsync = 2401,
                          kMemFreeAsync = 2402;
inline const uint32_t kAwaitRest = uint32_t(wire::SessionOrdinal::await_rest);
inline const uint32_t kKeepingMemory = uint32_t(wire::SessionOrdinal::keeping_memory);
inline const uint32_t kFreeAtRest = uint32_t(wire::SessionOrdinal::free_at_rest);
inline const uint32_t kAllocateAhead = uint32_t(wire::SessionOrdinal::allocate_ahead);
inline const uint32_t kPing = uint32_t(wire::SessionOrdinal::ping);
inline const uint32_t kAllocateKnown = uint32_t(wire::SessionOrdinal::allocate_known);

// The server gives new addresses each time.
struct Keeping : test::DeviceProcess {
  explicit Keeping(const char* wish = "64MiB", const char* prefetch = "off") : DeviceProcess(1, wish, prefetch) {
    void* room = mmap(nullptr, kRoomBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(room != MAP_FAILED);
    munmap(room, kRoomBytes);
    next = reinterpret_cast<uint64_t>(room);
    session->answer(test::kMemAlloc, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocV2Results>().setDptr(new_address());
    });
    session->answer(kMemAllocAsync, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocAsyncResults>().setDptr(new_address());
    });
    session->answer(kMemAllocFromPoolAsync, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocFromPoolAsyncResults>().setDptr(new_address());
    });
  }

  CUdeviceptr allocate(size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    REQUIRE(custom::cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS);
    return address;
  }
  CUdeviceptr allocate_on(CUstream stream, size_t bytes = kBytes) {
    CUdeviceptr address = 0;
    REQUIRE(custom::cuMemAllocAsync(&address, bytes, stream, false) == CUDA_SUCCESS);
    return address;
  }
  static void free(CUdeviceptr address) { REQUIRE(custom::cuMemFree_v2(address) == CUDA_SUCCESS); }
  static void free_on(CUdeviceptr address, CUstream stream) {
    REQUIRE(custom::cuMemFreeAsync(address, stream, false) == CUDA_SUCCESS);
  }
  static CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream stream = nullptr;
    REQUIRE(custom::cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
    return stream;
  }
  static CachedMemory& kept() { return test::part<client::CachedMemory>(); }
  // The server answers the newest free_at_rest, and an allocate_ahead of these addresses.
  std::vector<CUdeviceptr> told_to_leave() const {
    std::vector<CUdeviceptr> addresses;
    newest(kFreeAtRest).read<schema::FreeAtRest>([&](auto frame) {
      for (uint64_t address : frame.getAddresses()) addresses.push_back(address);
    });
    return addresses;
  }
  void answer_at_rest(bool freed) const {
    capnp::MallocMessageBuilder message;
    auto notice = message.initRoot<schema::FreedAtRest>();
    notice.setSequence(newest(kFreeAtRest).sequence);
    notice.setFreed(freed);
    notify(wire::NoticeOrdinal::freed_at_rest, message);
  }
  void answer_ahead(const std::vector<CUdeviceptr>& addresses, uint32_t question = kAllocateAhead) const {
    capnp::MallocMessageBuilder message;
    auto notice = message.initRoot<schema::AllocatedAhead>();
    notice.setSequence(newest(question).sequence);
    auto list = notice.initAddresses(unsigned(addresses.size()));
    for (unsigned i = 0; i < addresses.size(); ++i) list.set(i, addresses[i]);
    notify(wire::NoticeOrdinal::allocated_ahead, message);
  }
  // Answers with as many addresses as requested.
  std::vector<CUdeviceptr> answer_ahead() {
    std::vector<CUdeviceptr> addresses(asked_ahead());
    for (CUdeviceptr& address : addresses) address = new_address();
    answer_ahead(addresses);
    return addresses;
  }
  uint32_t asked_ahead(uint64_t bytes = kBytes) const {
    uint32_t count = 0;
    newest(kAllocateAhead).read<schema::AllocateAhead>([&](auto frame) {
      CHECK(frame.getBytes() == bytes);
      count = frame.getCount();
    });
    return count;
  }
  // Returns the requested sizes that earlier runs of the program had.
  std::vector<uint64_t> asked_as_profiled() const {
    std::vector<uint64_t> sizes;
    newest(kAllocateKnown).read<schema::AllocateKnown>([&](auto frame) {
      for (uint64_t bytes : frame.getSizes()) sizes.push_back(bytes);
    });
    return sizes;
  }
  std::vector<CUdeviceptr> answer_as_profiled(size_t most = SIZE_MAX) {
    std::vector<CUdeviceptr> addresses(std::min(most, asked_as_profiled().size()));
    for (CUdeviceptr& address : addresses) address = new_address();
    answer_ahead(addresses, kAllocateKnown);
    return addresses;
  }
  uint64_t new_address() { return next += 64u << 20; }
  // Returns the ordinals of the frames after the first `before`.
  std::vector<uint32_t> sent_since(size_t before) const {
    std::vector<uint32_t> ordinals;
    for (const test::SentFrame& frame : session->frames()) ordinals.push_back(frame.ordinal);
    return {ordinals.begin() + ptrdiff_t(before), ordinals.end()};
  }

 private:
  static constexpr uint64_t kRoomBytes = uint64_t{8} << 30;

  test::SentFrame newest(uint32_t ordinal) const {
    const auto frames = session->frames();
    auto found =
        std::find_if(frames.rbegin(), frames.rend(), [&](const auto& each) { return each.ordinal == ordinal; });
    REQUIRE(found != frames.rend());
    return *found;
  }
  static void notify(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message) {
    capnp::SegmentArrayMessageReader reader(message.getSegmentsForOutput());
    test::part<client::Notices>().notice(ordinal, reader);
  }

  uint64_t next = 0;
};

}  // namespace gpuwire::client
