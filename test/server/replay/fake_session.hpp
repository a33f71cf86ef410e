// A Replay without a worker: frames are built and executed in place, and sent messages are recorded.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "protocol/wire/message_reader.hpp"
#include "schema/session.capnp.h"
#include "server/replay/completion/completion.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "test/server/replay/fake_driver.hpp"

namespace gpuwire::test {

struct Sent {
  bool notice = false;
  wire::NoticeOrdinal ordinal{};
  uint64_t sequence = 0;
  kj::Array<capnp::word> words;
  std::vector<std::byte> bulk;

  template <class Struct>
  typename Struct::Reader as() const {
    reader = std::make_unique<capnp::FlatArrayMessageReader>(words);
    return reader->getRoot<Struct>();
  }
  mutable std::unique_ptr<capnp::FlatArrayMessageReader> reader;
};

class FakeOutbox final : public server::Outbox {
 public:
  void reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk) override {
    keep({false, {}, sequence, capnp::messageToFlatArray(message), {bulk.begin(), bulk.end()}, nullptr});
  }
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk) override {
    if (before_notice) before_notice(ordinal);
    keep({true, ordinal, 0, capnp::messageToFlatArray(message), {bulk.begin(), bulk.end()}, nullptr});
  }
  // Each notice calls this first, as if it waited for room.
  std::function<void(wire::NoticeOrdinal)> before_notice;
  std::vector<Sent> sent;
  std::mutex mutex;
  std::condition_variable changed;

 private:
  void keep(Sent&& one) {
    std::lock_guard lock(mutex);
    sent.push_back(std::move(one));
    changed.notify_all();
  }
};

// Runs `work` on another thread. False: it does not end, perhaps because of a lock that the caller holds.
inline bool done_elsewhere(std::function<void()> work) {
  constexpr std::chrono::minutes kPatience{2};
  auto done = std::make_shared<std::promise<void>>();
  std::future<void> over = done->get_future();
  std::thread([work = std::move(work), done] {
    work();
    done->set_value();
  }).detach();
  return over.wait_for(kPatience) == std::future_status::ready;
}

class FakeBulk final : public server::BulkReader {
 public:
  explicit FakeBulk(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t remaining() const override { return bytes_.size(); }
  bool read(std::span<std::byte> out) override {
    if (out.size() > bytes_.size()) return false;
    std::memcpy(out.data(), bytes_.data(), out.size());
    bytes_ = bytes_.subspan(out.size());
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
};

// Calls back on the test's signal.
class FakeWatcher final : public server::CompletionWatcher {
 public:
  explicit FakeWatcher(FakeDriver& driver) : driver_(driver) {}
  bool watch(CUcontext, CUevent event, std::function<void(CUresult)> done) override {
    if (full) return false;
    std::lock_guard lock(mutex_);
    watches_.push_back({event, std::move(done)});
    added_.notify_all();
    return true;
  }
  // Polls every event once; returns the number of completed ones.
  size_t poll() {
    std::vector<Watch> watches;
    {
      std::lock_guard lock(mutex_);
      watches.swap(watches_);
    }
    size_t done = 0;
    for (auto& watch : watches) {
      CUresult result = watch.event ? driver_.table.cuEventQuery(watch.event) : CUDA_SUCCESS;
      if (result == CUDA_ERROR_NOT_READY) {
        std::lock_guard lock(mutex_);
        watches_.push_back(std::move(watch));
      } else {
        ++done;
        watch.done(result);
      }
    }
    return done;
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return watches_.size();
  }
  // Waits until another thread has added this many watches.
  void wait_for_size(size_t count) {
    std::unique_lock lock(mutex_);
    added_.wait(lock, [&] { return watches_.size() >= count; });
  }
  bool full = false;

 private:
  struct Watch {
    CUevent event;
    std::function<void(CUresult)> done;
  };
  FakeDriver& driver_;
  mutable std::mutex mutex_;
  std::condition_variable added_;
  std::vector<Watch> watches_;  // under mutex_
};

class FakeSession final : public server::Replay {
 public:
  // `account`: of host memory; outlives the session; null: no account.
  explicit FakeSession(FakeDriver& driver, server::SessionSettings settings = {}, server::HostMemory* account = nullptr)
      : driver_(driver),
        account_(account),
        handles_(account),
        watcher_(driver),
        state_(std::make_unique<server::ReplayState>(*this, std::move(settings))) {}
  ~FakeSession() override {
    run_waiters();
    waiters_at_once = true;
    state_->end();  // like the worker: ending objects use the state
    state_.reset();
  }

  const server::DriverTable& driver() const override { return driver_.table; }
  server::HandleTable& handles() override { return handles_; }
  server::Outbox& outbox() override { return outbox_; }
  server::ReplayState& state() override { return *state_; }
  FakeWatcher& watcher() override { return watcher_; }
  void wait_elsewhere(std::function<void()> work) override {
    if (waiters_at_once) return work();
    waiters_.push_back(std::move(work));
  }
  // Runs loads at once, unless a test decides when they end.
  void work_elsewhere(std::function<void()> work) override {
    if (works_at_once) return work();
    waiters_.push_back(std::move(work));
  }
  CUcontext context() const override { return context_; }
  void fail_posted(const wire::FrameHeader& header, CUresult result, std::string) override {
    failed.push_back({header.sequence, result});
  }
  CUresult take_deferred() override { return std::exchange(deferred, CUDA_SUCCESS); }
  std::chrono::microseconds poll_time() const override { return poll_limit; }
  // Polls once, without a clock, unless a test decides between two polls whether to stop.
  bool input_waiting() override { return !enough_polls || enough_polls(); }
  void drain_output() override { ++drained; }
  bool poll_or_defer(server::Call& call, server::DeviceWait wait) override {
    call.answered = true;
    CUresult result = wait.query ? wait.query() : CUDA_ERROR_NOT_READY;
    if (result != CUDA_ERROR_NOT_READY) {
      wait.finish(result);
      return true;
    }
    wait_elsewhere([wait] { wait.finish(wait.wait()); });
    return false;
  }
  void expect_answers() override { ++answers_expected; }
  void answer_awaited() override {}
  server::HostMemory* host_memory() override { return account_; }
  bool take_prewarmed_primary(CUdevice) override { return std::exchange(prewarmed, false); }

  void run_waiters() {
    for (auto& work : std::exchange(waiters_, {})) work();
  }
  size_t waiting() const { return waiters_.size(); }

  // Executes one frame, and returns its sequence.
  template <class Params, class Write>
  uint64_t frame(wire::FrameKind kind, uint32_t ordinal, Write&& write, std::span<const std::byte> bulk = {}) {
    capnp::MallocMessageBuilder builder;
    write(builder.initRoot<Params>());
    auto words = capnp::messageToFlatArray(builder);
    capnp::FlatArrayMessageReader message(words);
    wire::FrameHeader header;
    header.kind = uint8_t(kind);
    header.ordinal = ordinal;
    header.sequence = ++sequence_;
    header.context = frame_context;
    header.bulk_bytes = bulk.size();
    dispatch(*entry_of(ordinal), header, message, bulk);
    return header.sequence;
  }
  // Executes a frame of an untrusted client. False: it ends the session.
  bool execute(wire::FrameHeader header, std::span<const capnp::word> words, std::span<const std::byte> bulk) {
    auto kind = wire::FrameKind(header.kind);
    if (kind != wire::FrameKind::posted && kind != wire::FrameKind::called) return true;
    const server::ReplayEntry* entry = entry_of(header.ordinal);
    if (!entry || (kind == wire::FrameKind::posted && !entry->posted)) return false;
    header.sequence = ++sequence_;
    header.bulk_bytes = bulk.size();
    try {
      wire::SegmentReader message({words.data(), words.size()});
      dispatch(*entry, header, message, bulk);
    } catch (const server::ProtocolFault&) {
      return false;
    } catch (const kj::Exception&) {
      return false;
    }
    return true;
  }
  template <class Params, class Write>
  uint64_t post(wire::SessionOrdinal ordinal, Write&& write, std::span<const std::byte> bulk = {}) {
    return frame<Params>(wire::FrameKind::posted, uint32_t(ordinal), write, bulk);
  }
  template <class Params, class Write>
  uint64_t call(wire::SessionOrdinal ordinal, Write&& write, std::span<const std::byte> bulk = {}) {
    return frame<Params>(wire::FrameKind::called, uint32_t(ordinal), write, bulk);
  }

  // Returns the reply to a frame, if it was sent.
  const Sent* reply(uint64_t sequence) const {
    for (const Sent& one : outbox_.sent)
      if (!one.notice && one.sequence == sequence) return &one;
    return nullptr;
  }
  // Returns the reply's result; -1: no reply.
  int result(uint64_t sequence) const {
    const Sent* sent = reply(sequence);
    return sent ? sent->as<schema::Result>().getResult() : -1;
  }
  std::vector<const Sent*> notices(wire::NoticeOrdinal ordinal) const {
    std::vector<const Sent*> found;
    for (const Sent& one : outbox_.sent)
      if (one.notice && one.ordinal == ordinal) found.push_back(&one);
    return found;
  }
  const std::vector<Sent>& sent() const { return outbox_.sent; }

  // Binds the primary context of device 0 and makes the following frames run in it.
  static constexpr uint64_t kPrimary = wire::make_handle(wire::HandleKind::context, 1, 1);
  void enter_primary() {
    post<schema::RetainPrimary>(wire::SessionOrdinal::retain_primary, [](auto params) { params.setContext(kPrimary); });
    frame_context = uint32_t(kPrimary);
  }
  // Gives the client a handle of a native object.
  uint64_t give(wire::HandleKind kind, void* native, uint32_t index = 1) {
    uint64_t handle = wire::make_handle(kind, index, 1);
    handles_.insert(kind, handle, native);
    return handle;
  }
  bool end() {
    bool at_once = std::exchange(waiters_at_once, true);
    bool ended = state_->end();
    waiters_at_once = at_once;
    return ended;
  }

  struct Failure {
    uint64_t sequence;
    CUresult result;
  };
  std::vector<Failure> failed;
  CUresult deferred = CUDA_SUCCESS;
  uint32_t frame_context = 0;
  unsigned drained = 0;
  std::chrono::microseconds poll_limit{};
  std::function<bool()> enough_polls;
  unsigned answers_expected = 0;
  bool prewarmed = false;
  bool waiters_at_once = false, works_at_once = true;
  FakeOutbox outbox_;

 private:
  // Returns null if there is no such call.
  static const server::ReplayEntry* entry_of(uint32_t ordinal) {
    const bool own = ordinal < wire::kFirstDriverOrdinal;
    auto table = own ? server::session_replay_table() : server::generated_replay_table();
    const size_t index = own ? ordinal : ordinal - wire::kFirstDriverOrdinal;
    return index < table.size() && table[index].function ? &table[index] : nullptr;
  }
  void dispatch(const server::ReplayEntry& entry, const wire::FrameHeader& header, capnp::MessageReader& message,
                std::span<const std::byte> bulk) {
    FakeBulk reader(bulk);
    server::Call call{header, message, reader};
    check_bulk(entry, header);
    if (CUresult error = state_->enter(header, entry, context_)) {
      server::finish(*this, call, error);
    } else {
      entry.function(*this, call);
    }
    server::run_postponed_frees(*this);
  }

  FakeDriver& driver_;
  server::HostMemory* const account_;
  server::HandleTable handles_;
  FakeWatcher watcher_;
  std::vector<std::function<void()>> waiters_;
  CUcontext context_ = nullptr;
  uint64_t sequence_ = 0;
  std::unique_ptr<server::ReplayState> state_;
};

}  // namespace gpuwire::test
