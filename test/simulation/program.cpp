// The simulated program.
#include <algorithm>
#include <cstring>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "client_stub/session/call.hpp"
#include "schema/session.capnp.h"
#include "test/simulation/world.hpp"

namespace gpuwire::simulation {

namespace {

using client::Bulk;
using client::BulkSink;

// One thread of the program. Its calls' numbers consist of the thread and a count.
class Caller {
 public:
  Caller(client::Session& session, const Scenario& scenario, unsigned thread, Verdict& verdict,
         const std::function<void()>& each_step)
      : session_(session),
        scenario_(scenario),
        thread_(thread),
        random_(scenario.seed * 1000 + thread),
        next_(uint64_t(thread) << 32),
        verdict_(verdict),
        each_step_(each_step) {}

  void run() {
    for (unsigned i = 0; i < scenario_.calls && !verdict_.failed(); ++i) {
      step();
      each_step_();
    }
    check(call(Ordinal::drain, ++next_, {}, {}), "the last call");
  }

 private:
  void step() {
    uint64_t number = ++next_;
    if (capturing_) return capture(number);
    switch (random_() % 16) {
      case 0:
      case 1: return echo(number);
      case 2:
      case 3: return answered_later(number);
      case 4:
      case 5: return check(post(Ordinal::notice, number, {}), "a post that a notice answers");
      case 6: return posted_from_here(number);
      case 8:
        if (scenario_.callbacks) return check(post(Ordinal::callback, number, {}), "a host function");
        break;
      case 9:
        if (scenario_.callbacks) return check(call(Ordinal::drain, number, {}, {}), "a drain");
        break;
      case 10:
        if (scenario_.captures) return capture(number);
        break;
      case 11:
      case 12:
      case 13:
        if (scenario_.managed && thread_ == 0) return managed(number);
        break;
      case 14:
        if (scenario_.forks && thread_ == 0 && !std::exchange(forked_, true)) forks();
        break;
      default: break;
    }
    noted(number);
  }

  // Calls on the managed memory; `managed_` is the program's copy.
  void managed(uint64_t number) {
    auto chunk = std::span(managed_).subspan(managed_chunk(number) * kManagedChunkBytes, kManagedChunkBytes);
    switch (random_() % 3) {
      case 0: {
        fill(number, chunk);
        std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) {
          std::memcpy(out.data(), chunk.data() + offset, out.size());
        };
        return check(post(Ordinal::managed_write, number, {.bytes = chunk.size(), .gather = &gather}),
                     "a managed write");
      }
      case 1:
        managed_work(number, managed_);
        return check(post(Ordinal::managed_work, number, {}), "work on managed memory");
      default: {
        std::vector<std::byte> back(chunk.size());
        check(call(Ordinal::managed_read, number, {}, {back.data(), back.size()}), "a managed read");
        if (!verdict_.failed() && !std::equal(back.begin(), back.end(), chunk.begin()))
          verdict_.fail("managed memory is not what it should be after call " + std::to_string(number));
      }
    }
  }

  // One call of a capture: its begin, a node, or its end.
  void capture(uint64_t number) {
    if (!std::exchange(capturing_, true)) {
      captured_ = 0;
      return check(post(Ordinal::capture_begin, number, {}), "a capture's beginning");
    }
    if (random_() % 4) {
      captured_ = captured_with(captured_, number);
      return check(post(Ordinal::capture_node, number, {}), "a captured call");
    }
    capturing_ = false;
    uint64_t digest = 0;
    check(call(Ordinal::capture_end, number, {}, {reinterpret_cast<std::byte*>(&digest), sizeof digest}),
          "a capture's end");
    if (!verdict_.failed() && digest != captured_)
      verdict_.fail("what was captured before call " + std::to_string(number) + " is not what was called");
  }

  // The child finds the session unusable and leaves it alone; the parent continues.
  void forks() {
    pid_t child = ::fork();
    if (child == 0) ::_exit(session_.state() == CUDA_SUCCESS ? 1 : 0);
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0)
      verdict_.fail("a child of fork() could go on with the session");
  }

  std::vector<std::byte> bulk(uint64_t number) {
    size_t most = random_() % 8 ? 200 : scenario_.bulk_bytes_max;
    std::vector<std::byte> bytes(random_() % (most + 1));
    fill(number, bytes);
    return bytes;
  }

  void noted(uint64_t number) {
    auto bytes = bulk(number);
    bool posted = random_() % 4 && bytes.size() <= wire::kPostedBulkBytesMax;
    Bulk with{.data = bytes.data(), .bytes = bytes.size()};
    std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset, out.size());
    };
    if (random_() % 3 == 0) with = {.bytes = bytes.size(), .gather = &gather};
    check(posted ? post(Ordinal::note, number, with) : call(Ordinal::note, number, with, {}), "a noted call");
    // The program may overwrite the memory again.
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  }

  // Posts from memory that stays valid until finish_sending() has returned.
  void posted_from_here(uint64_t number) {
    std::vector<std::byte> bytes(scenario_.bulk_bytes_max);
    fill(number, bytes);
    check(post(Ordinal::note, number, {.data = bytes.data(), .bytes = bytes.size(), .stays = true}),
          "a post from memory that stays");
    session_.finish_sending();
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  }

  void echo(uint64_t number) {
    auto bytes = bulk(number);
    std::vector<std::byte> back(bytes.size());
    check(call(Ordinal::echo, number, {.data = bytes.data(), .bytes = bytes.size()}, {back.data(), back.size()}),
          "an echo");
    if (!verdict_.failed() && back != bytes) verdict_.fail("the echo of call " + std::to_string(number) + " is wrong");
  }

  void answered_later(uint64_t number) {
    std::vector<std::byte> back(answer_bytes(number));
    check(call(Ordinal::later, number, {}, {back.data(), back.size()}), "a call that a waiter answers");
    if (!verdict_.failed() && !is_bulk_of(number, back))
      verdict_.fail("the answer to call " + std::to_string(number) + " is wrong");
  }

  CUresult post(Ordinal ordinal, uint64_t number, const Bulk& bulk) {
    return client::post<schema::Source>(
        session_, uint32_t(ordinal), 0, client::message_words<schema::Source>(),
        [&](auto params) { params.setBytes(number); }, bulk);
  }
  CUresult call(Ordinal ordinal, uint64_t number, const Bulk& bulk, const BulkSink& sink) {
    return client::call<schema::Source, schema::Result>(
        session_, uint32_t(ordinal), 0, client::message_words<schema::Source>(),
        [&](auto params) { params.setBytes(number); }, [](auto) {}, bulk, sink);
  }
  void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) verdict_.fail(std::string(what) + " failed with " + std::to_string(int(result)));
  }

  client::Session& session_;
  const Scenario& scenario_;
  const unsigned thread_;
  std::mt19937_64 random_;
  uint64_t next_;
  Verdict& verdict_;
  const std::function<void()>& each_step_;
  std::vector<std::byte> managed_ = std::vector<std::byte>(kManagedChunks * kManagedChunkBytes);
  bool capturing_ = false, forked_ = false;
  uint64_t captured_ = 0;
};

}  // namespace

void run_program(client::Session& session, const Scenario& scenario, Verdict& verdict,
                 const std::function<void()>& each_step) {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < scenario.threads; ++thread)
    threads.emplace_back([&, thread] { Caller(session, scenario, thread, verdict, each_step).run(); });
  for (auto& thread : threads) thread.join();
}

void HostFunctions::start(client::Session& session, unsigned thread_number, Verdict& verdict) {
  thread_ = std::thread([this, &session, thread_number, &verdict] {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || !callbacks_.empty(); });
      if (callbacks_.empty()) return;
      uint64_t callback = callbacks_.front();
      callbacks_.erase(callbacks_.begin());
      lock.unlock();
      uint64_t number = (uint64_t(thread_number) << 32) + ++answered_;
      CUresult result = client::post<schema::CopyData>(session, uint32_t(Ordinal::callback_done), 0,
                                                       client::message_words<schema::CopyData>(), [&](auto params) {
                                                         params.setSequence(number);
                                                         params.setOffset(callback);
                                                       });
      session.flush();
      if (result != CUDA_SUCCESS)
        verdict.fail("the answer to a host function failed with " + std::to_string(int(result)));
      lock.lock();
    }
  });
}

void HostFunctions::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Notices::notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) {
  if (ordinal == wire::NoticeOrdinal::host_callback)
    return functions_.reached(message.getRoot<schema::HostCallback>().getCallback());
  verdict_.fail("notice " + std::to_string(int(ordinal)) + " that nothing asked for");
}

client::BulkSink Notices::bulk_for(wire::NoticeOrdinal, capnp::MessageReader&, size_t bulk_bytes) {
  sink_.resize(bulk_bytes);
  return {sink_.data(), sink_.size()};
}

void Notices::bulk_stored(wire::NoticeOrdinal, capnp::MessageReader& message, std::span<const std::byte>) {
  uint64_t number = message.getRoot<schema::CopyData>().getSequence();
  if (sink_.size() != answer_bytes(number) || !is_bulk_of(number, sink_))
    verdict_.fail("the notice of call " + std::to_string(number) + " is wrong");
  ++taken;
}

void Notices::ended(CUresult, std::string_view reason) { verdict_.fail("the session ended: " + std::string(reason)); }

}  // namespace gpuwire::simulation
