// A session without a server: records the frames that the stub sends and answers its calls at once.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client_stub/session/cached_bulk.hpp"
#include "client_stub/session/road.hpp"
#include "client_stub/session/session.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::test {

struct SentFrame {
  wire::FrameKind kind;
  uint32_t ordinal;
  uint32_t context;
  uint64_t sequence;
  std::vector<uint64_t> words;
  std::vector<std::byte> bulk;

  // Returns the sent message, read as Params.
  template <class Params, class Visit>
  void read(Visit&& visit) const {
    kj::ArrayPtr<const capnp::word> segment(reinterpret_cast<const capnp::word*>(words.data()), words.size());
    kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments(&segment, 1);
    capnp::SegmentArrayMessageReader reader(segments);
    visit(reader.getRoot<Params>());
  }
};

class FakeSession final : public client::Session, public client::Road {
 public:
  explicit FakeSession(client::ServerFacts facts) : facts_(std::move(facts)) {}

  // Writes the reply of a called frame; without one for its ordinal, a reply of zeros: success.
  using Answer = std::function<void(capnp::MessageBuilder& reply)>;
  void answer(uint32_t ordinal, Answer answer) { answers_[ordinal] = std::move(answer); }
  // The same for answers that depend on the call or have bulk.
  using Serve = std::function<void(const SentFrame& frame, capnp::MessageBuilder& reply, const client::BulkSink& sink)>;
  void serve(uint32_t ordinal, Serve serve) { servers_[ordinal] = std::move(serve); }
  // Writes bytes to the destination of a reply's bulk.
  static void fill(const client::BulkSink& sink, std::span<const std::byte> bytes) {
    if (sink.scatter) {
      (*sink.scatter)(0, bytes);
    } else {
      std::memcpy(sink.data, bytes.data(), bytes.size());
    }
  }
  // Called before a frame is begun, by the thread that sends it.
  void before_frames(std::function<void(uint32_t ordinal)> poll) { before_frames_ = std::move(poll); }
  // The largest number of called frames that were sent and not waited for yet.
  size_t in_flight_max() const { return in_flight_max_; }
  void answer_with(uint32_t ordinal, CUresult result) {
    answer(ordinal, [result](capnp::MessageBuilder& reply) { reply.initRoot<schema::Result>().setResult(result); });
  }

  std::vector<SentFrame> frames() const {
    std::lock_guard lock(frames_mutex_);
    return frames_;
  }
  // Returns the number of sent frames of this ordinal.
  size_t count(uint32_t ordinal) const {
    size_t found = 0;
    for (const SentFrame& frame : frames()) found += frame.ordinal == ordinal;
    return found;
  }
  size_t total() const { return frames().size(); }
  SentFrame newest() const { return frames().back(); }
  void end_with(CUresult result) { state_ = result; }
  bool closed() const { return closed_; }

  // The session's transport; only shared memory carries descriptors, while `gives` is true.
  const char* road = "stream";
  bool gives = true;
  std::vector<std::pair<uint64_t, int>> given;  // a copy of each, which is the test's
  const char* road_name() const override { return road; }
  Lanes lanes() const noexcept override { return {}; }
  bool give_descriptor(uint64_t number, int descriptor) noexcept override {
    if (gives) given.emplace_back(number, dup(descriptor));
    return gives;
  }

  const client::ServerFacts& facts() const noexcept override { return facts_; }
  client::ServerFacts& facts() noexcept { return facts_; }
  client::SessionStats& stats() noexcept override { return stats_; }
  CUresult state() const noexcept override { return state_; }

  CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const client::Bulk& bulk,
                 Slot& slot) noexcept override {
    if (before_frames_) before_frames_(ordinal);
    if (state_ != CUDA_SUCCESS) return state_;
    building_.lock();
    current_ = {
        kind, ordinal, context, ++sequence_, std::vector<uint64_t>(words_max), std::vector<std::byte>(bulk.bytes)};
    if (bulk.gather) {
      (*bulk.gather)(0, current_.bulk);
    } else if (bulk.bytes) {
      std::memcpy(current_.bulk.data(), bulk.data, bulk.bytes);
    }
    if (kind == wire::FrameKind::called) in_flight_max_ = std::max<size_t>(in_flight_max_, ++in_flight_);
    slot.words =
        kj::ArrayPtr<capnp::word>(reinterpret_cast<capnp::word*>(current_.words.data()), current_.words.size());
    slot.sequence = current_.sequence;
    return CUDA_SUCCESS;
  }
  void commit(Slot&, size_t words_used) noexcept override {
    current_.words.resize(words_used);
    {
      std::lock_guard lock(frames_mutex_);
      frames_.push_back(std::move(current_));
    }
    building_.unlock();
  }
  void abandon(Slot&) noexcept override { building_.unlock(); }

  CUresult wait(uint64_t sequence, ReplyReader read, void* user, const client::BulkSink& sink) noexcept override {
    uint32_t ordinal = 0;
    --in_flight_;
    capnp::MallocMessageBuilder reply;
    std::optional<SentFrame> asked;
    {
      std::lock_guard lock(frames_mutex_);
      for (const SentFrame& frame : frames_) {
        if (frame.sequence == sequence) asked = frame;
      }
    }
    if (asked) ordinal = asked->ordinal;
    if (auto found = servers_.find(ordinal); asked && found != servers_.end()) {
      found->second(*asked, reply, sink);
    } else if (auto found = answers_.find(ordinal); found != answers_.end()) {
      found->second(reply);
    } else {
      reply.initRoot<schema::Result>();
    }
    capnp::SegmentArrayMessageReader reader(reply.getSegmentsForOutput());
    read(user, reader);
    return CUDA_SUCCESS;
  }
  void expect_reply(Slot&, const client::BulkSink&) noexcept override {}
  // The result for a thread that has sent the buffered frames.
  std::function<void()> on_flush;
  void flush() noexcept override {
    ++flushes;
    if (on_flush) on_flush();
  }
  std::atomic<size_t> flushes{0};
  // The result for a thread that polls for notices.
  std::function<void()> on_poll;
  void poll() noexcept override {
    if (on_poll) on_poll();
  }
  void finish_sending() noexcept override { ++sendings_finished; }
  std::atomic<size_t> sendings_finished{0};
  uint64_t last_sequence() const noexcept override { return sequence_; }
  std::shared_ptr<std::byte> keep(size_t bytes) noexcept override { return kept_.take(bytes); }
  void close() noexcept override {
    closed_ = true;
    state_ = CUDA_ERROR_DEINITIALIZED;
  }
  void after_fork_in_child() noexcept override {}

 private:
  client::ServerFacts facts_;
  client::SessionStats stats_;
  std::atomic<CUresult> state_ = CUDA_SUCCESS;  // ended by a test while threads send
  bool closed_ = false;
  client::CachedBulk kept_;
  std::map<uint32_t, Answer> answers_;
  std::map<uint32_t, Serve> servers_;
  std::function<void(uint32_t)> before_frames_;
  std::atomic<size_t> in_flight_{0}, in_flight_max_{0};  // the maximum is exact for tests with one thread
  std::mutex building_;
  SentFrame current_{};
  std::atomic<uint64_t> sequence_{0};
  mutable std::mutex frames_mutex_;
  std::vector<SentFrame> frames_;
};

// Facts of a server with `devices` devices that differ in name, UUID and PCI bus; every call is known.
inline client::ServerFacts fake_facts(int devices) {
  client::ServerFacts facts;
  facts.address = "fake:1";
  facts.driver_name = "fake";
  facts.driver_version = 13000;
  facts.ordinals.assign(wire::kOrdinalMax / 8, 0xff);
  for (int i = 0; i < devices; ++i) {
    client::DeviceFacts device;
    device.name = "Fake device " + std::to_string(i);
    for (int byte = 0; byte < 16; ++byte) device.uuid.bytes[byte] = char(16 * i + byte);
    device.total_bytes = (1ull << 30) + uint64_t(i);
    device.attributes.assign(148, 0);
    device.attribute_errors.assign(148, 0);
    for (int a = 1; a < 148; ++a) device.attributes[size_t(a)] = 1000 * i + a;
    device.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 0;
    device.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 6 + i;
    device.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] = 0;
    device.pci_bus_id = "0000:0" + std::to_string(6 + i) + ":00.0";
    device.limits.assign(12, 4096);
    device.limits[3] = ~0ull;
    device.stream_priority_least = 0;
    device.stream_priority_greatest = -5;
    device.peers.assign(size_t(devices), true);
    facts.devices.push_back(std::move(device));
  }
  return facts;
}

}  // namespace gpuwire::test
