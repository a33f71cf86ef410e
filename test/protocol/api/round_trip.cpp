#include "test/protocol/api/round_trip.hpp"

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <cstdlib>
#include <new>
#include <set>

#include "client_stub/session/session.hpp"
#include "schema/session.capnp.h"
#include "server/driver_table.hpp"

namespace {

// Sizes of what is allocated while a frame is replayed.
struct Allocations {
  bool counting = false;
  size_t largest = 0, total = 0;
} g_allocations;

void* allocate(size_t bytes) {
  if (g_allocations.counting) {
    g_allocations.largest = std::max(g_allocations.largest, bytes);
    g_allocations.total += bytes;
  }
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace gpuwire::test {

namespace {

World* g_world = nullptr;
const GeneratedCall* g_call = nullptr;

capnp::SegmentArrayMessageReader read_words(const Words& words, kj::ArrayPtr<const capnp::word>& segment) {
  segment = kj::arrayPtr(reinterpret_cast<const capnp::word*>(words.data()), words.size());
  return capnp::SegmentArrayMessageReader(kj::arrayPtr(&segment, 1));
}

class NoBulk final : public server::BulkReader {
 public:
  uint64_t remaining() const override { return 0; }
  bool read(std::span<std::byte> out) override { return out.empty(); }
};

class MockReplay final : public server::Replay, public server::Outbox {
 public:
  const server::DriverTable& driver() const override { return mock_driver_table(); }
  server::HandleTable& handles() override { return handles_; }
  server::Outbox& outbox() override { return *this; }
  void wait_elsewhere(std::function<void()> work) override { work(); }
  CUcontext context() const override { return nullptr; }
  void fail_posted(const wire::FrameHeader&, CUresult result, std::string) override {
    outcome->posted_failure = result;
  }
  CUresult take_deferred() override { return CUDA_SUCCESS; }
  server::ReplayState& state() override { std::abort(); }
  server::CompletionWatcher& watcher() override { std::abort(); }
  bool input_waiting() override { return false; }
  std::chrono::microseconds poll_time() const override { return {}; }
  void drain_output() override {}
  bool poll_or_defer(server::Call&, server::DeviceWait) override { std::abort(); }
  bool take_prewarmed_primary(CUdevice) override { return false; }
  void expect_answers() override {}
  void answer_awaited() override {}

  void reply(uint64_t, capnp::MessageBuilder& message, std::span<const std::byte>) override {
    auto segments = message.getSegmentsForOutput();
    if (segments.size() != 1 || outcome->replied) {
      outcome->unexpected = "a reply of several segments, or a second one";
      return;
    }
    outcome->replied = true;
    auto* words = reinterpret_cast<const uint64_t*>(segments[0].begin());
    outcome->reply.assign(words, words + segments[0].size());
  }
  void notice(wire::NoticeOrdinal, capnp::MessageBuilder&, std::span<const std::byte>) override {}

  Outcome* outcome = nullptr;

 private:
  server::HandleTable handles_;
};

class MemorySession final : public client::Session {
 public:
  MemorySession() { facts_.ordinals.assign(wire::kOrdinalMax / 8, 0xff); }

  const client::ServerFacts& facts() const noexcept override { return facts_; }
  client::SessionStats& stats() noexcept override { return stats_; }
  CUresult state() const noexcept override { return CUDA_SUCCESS; }

  CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const client::Bulk&,
                 Slot& slot) noexcept override {
    if (words_max > wire::kMessageWordsMax) return CUDA_ERROR_INVALID_VALUE;
    header_ = {};
    header_.kind = uint8_t(kind);
    header_.ordinal = ordinal;
    header_.context = context;
    header_.sequence = ++sequence_;
    words_.assign(words_max, 0);
    slot.words = kj::arrayPtr(reinterpret_cast<capnp::word*>(words_.data()), words_.size());
    slot.sequence = sequence_;
    return CUDA_SUCCESS;
  }
  void commit(Slot&, size_t words_used) noexcept override {
    header_.message_words = uint32_t(words_used);
    g_world->header = header_;
    g_world->request.assign(words_.begin(), words_.begin() + words_used);
    g_world->outcome = g_world->replay(*g_call, wire::FrameKind(header_.kind), g_world->request);
  }
  void abandon(Slot&) noexcept override { g_world->outcome.unexpected = "a message that did not fit its bound"; }
  CUresult wait(uint64_t, ReplyReader read, void* user, const client::BulkSink&) noexcept override {
    const Words& reply = g_world->forged_reply ? *g_world->forged_reply : g_world->outcome.reply;
    if (!g_world->forged_reply && !g_world->outcome.replied) return CUDA_ERROR_UNKNOWN;
    try {
      kj::ArrayPtr<const capnp::word> segment;
      auto message = read_words(reply, segment);
      read(user, message);
      return CUDA_SUCCESS;
    } catch (const kj::Exception&) {
      return CUDA_ERROR_UNKNOWN;
    }
  }
  void expect_reply(Slot&, const client::BulkSink&) noexcept override {}
  void flush() noexcept override {}
  void finish_sending() noexcept override {}
  uint64_t last_sequence() const noexcept override { return sequence_; }
  void close() noexcept override {}
  void after_fork_in_child() noexcept override {}

 private:
  client::ServerFacts facts_;
  client::SessionStats stats_;
  wire::FrameHeader header_;
  Words words_;
  uint64_t sequence_ = 0;
};

}  // namespace

struct World::Parts {
  MockReplay replay;
  MemorySession session;
  std::set<uint64_t> known;  // the client's handles
  uint32_t next_index[wire::kHandleKinds] = {};
  uint64_t next_native = 0;
};

World::World(uint64_t seed) : driver(seed * 2 + 1), program(*this, seed * 2), parts(std::make_unique<Parts>()) {
  g_world = this;
}
World::~World() { g_world = nullptr; }

void World::run(const GeneratedCall& call) {
  g_call = &call;
  call.call(program);
}

Outcome World::replay(const GeneratedCall& call, wire::FrameKind kind, const Words& words) {
  Outcome outcome;
  parts->replay.outcome = &outcome;
  wire::FrameHeader header;
  header.kind = uint8_t(kind);
  header.ordinal = call.ordinal;
  header.message_words = uint32_t(words.size());
  g_allocations = {.counting = true};
  try {
    kj::ArrayPtr<const capnp::word> segment;
    auto message = read_words(words, segment);
    NoBulk bulk;
    server::Call decoded{header, message, bulk};
    call.replay(parts->replay, decoded);
  } catch (const server::ProtocolFault&) {
    outcome.fault = true;
  } catch (const kj::Exception&) {
    outcome.fault = true;
  } catch (const std::exception& error) {
    outcome.unexpected = error.what();
  }
  g_allocations.counting = false;
  outcome.largest_allocation = g_allocations.largest;
  outcome.allocated = g_allocations.total;
  return outcome;
}

size_t World::client_handles() const { return parts->known.size(); }

size_t World::server_handles(wire::HandleKind kind) {
  size_t count = 0;
  parts->replay.handles().for_each(kind, [&](uint64_t, void*) { ++count; });
  return count;
}

bool World::request_has_handle() const { return program.made_handles(); }

MockDriver& MockDriver::current(const char* function) {
  g_world->driver.function = function;
  return g_world->driver;
}

uint64_t MockDriver::known_native(wire::HandleKind kind) {
  uint64_t newest = 0;
  g_world->parts->replay.handles().for_each(kind, [&](uint64_t, void* native) {
    if (!newest) newest = word(native);
  });
  return newest;
}

client::Caller Program::caller() {
  client::Caller caller;
  caller.session = &world_.parts->session;
  return caller;
}

std::string Program::text() {
  std::string text(1 + bits() % 40, 'a');
  for (char& letter : text) letter = char('a' + bits() % 26);
  return text;
}

uint64_t Program::make_handle(wire::HandleKind kind) {
  uint64_t handle = client::create_handle(caller(), kind);
  uint64_t native = ++world_.parts->next_native << 8 | uint64_t(0x6b6e) << 44;
  world_.parts->replay.handles().insert(kind, handle, reinterpret_cast<void*>(native));
  natives_[handle] = native;
  return handle;
}

uint64_t Program::native(wire::HandleKind kind, uint64_t handle) {
  if (kind == wire::HandleKind::stream && handle <= wire::kStreamLegacy) return handle;
  void* native = nullptr;
  if (!handle || !client::known_handle(kind, handle)) return 0;
  world_.parts->replay.handles().find(kind, handle, native);
  return word(native);
}

uint64_t Program::destroyed(wire::HandleKind kind, uint64_t handle) {
  void* native = nullptr;
  if (client::known_handle(kind, handle) || world_.parts->replay.handles().find(kind, handle, native))
    return ~uint64_t(0);
  return natives_[handle];
}

bool Program::succeeded(CUresult outcome) {
  result = outcome;
  reached = outcome == CUDA_SUCCESS && !world_.forged_reply;
  return reached;
}

}  // namespace gpuwire::test

// What client_stub/driver gives the forward functions, for one world at a time.
namespace gpuwire::client {

using test::g_world;

uint64_t create_handle(const Caller&, wire::HandleKind kind) noexcept {
  uint64_t handle = wire::make_handle(kind, ++g_world->parts->next_index[unsigned(kind)], 1);
  g_world->parts->known.insert(handle);
  return handle;
}
bool known_handle(wire::HandleKind kind, uint64_t handle) noexcept {
  return wire::handle_kind(handle) == kind && g_world->parts->known.contains(handle);
}
void forget_handle(wire::HandleKind, uint64_t handle) noexcept { g_world->parts->known.erase(handle); }
uint64_t resolve_stream(const Caller&, CUstream stream, bool, CUresult& error) noexcept {
  uint64_t handle = word(stream);
  error = handle <= wire::kStreamLegacy || known_handle(wire::HandleKind::stream, handle) ? CUDA_SUCCESS
                                                                                          : CUDA_ERROR_INVALID_HANDLE;
  return handle;
}
void note_stream_work(const Caller&, uint64_t, uint64_t, bool) noexcept {}
void hand_over_event(uint64_t) noexcept {}
void note_foreign_records(const Caller&, uint64_t) noexcept {}
void note_address(const Caller&, uint64_t) noexcept {}
void note_addresses_in(const Caller&, std::span<const std::byte>) noexcept {}
CUresult await_work(const Caller&, GivenUp) noexcept { return CUDA_SUCCESS; }
void give_back_cached_memory(const Caller&) noexcept {}
bool free_cached_memory(const Caller&) noexcept { return false; }
CUresult before_work(const Caller&) noexcept { return CUDA_SUCCESS; }
void take_profiled_allocations(const Caller&) noexcept {}
int32_t server_device(CUdevice device, CUresult& error) noexcept {
  bool seen = device >= 0 && device < 4;
  error = seen ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return seen ? device + test::kServerDeviceOffset : -1;
}

}  // namespace gpuwire::client
