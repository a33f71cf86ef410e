// The server's side of the simulated program's calls.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include <capnp/message.h>

#include "schema/session.capnp.h"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "test/simulation/world.hpp"

namespace gpuwire::simulation {

namespace {

// One scenario runs at a time; set before its executor starts.
Executed* g_executed = nullptr;
Verdict* g_verdict = nullptr;

uint64_t begin(server::Call& call) {
  uint64_t number = call.message.getRoot<schema::Source>().getBytes();
  std::lock_guard lock(g_executed->mutex);
  g_executed->numbers.push_back(number);
  return number;
}

std::shared_ptr<std::vector<std::byte>> bulk_of(uint64_t number) {
  auto bytes = std::make_shared<std::vector<std::byte>>(answer_bytes(number));
  fill(number, *bytes);
  return bytes;
}

bool read_bulk(server::Call& call, uint64_t number, std::vector<std::byte>& bytes) {
  bytes.resize(call.bulk.remaining());
  if (!call.bulk.read(bytes)) return false;
  if (!is_bulk_of(number, bytes)) g_verdict->fail("bulk of call " + std::to_string(number) + " arrived wrong");
  return true;
}

void note(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  std::vector<std::byte> bytes;
  if (read_bulk(call, number, bytes)) finish(replay, call, CUDA_SUCCESS);
}

void echo(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  auto bytes = std::make_shared<std::vector<std::byte>>();
  if (!read_bulk(call, number, *bytes)) return;
  call.answered = true;
  send_result(replay, call.header.sequence, CUDA_SUCCESS, *bytes, bytes);
}

void later(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  call.answered = true;
  replay.wait_elsewhere([&replay, number, sequence = call.header.sequence] {
    auto bytes = bulk_of(number);
    send_result(replay, sequence, CUDA_SUCCESS, *bytes, bytes);
  });
}

void notice(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  auto bytes = bulk_of(number);
  server::SmallMessage<> message;
  message.root<schema::CopyData>().setSequence(number);
  replay.outbox().notice_kept(wire::NoticeOrdinal::copy_data, *message, *bytes, bytes);
}

// --- managed memory and captures: the executor's ---

std::vector<std::byte> g_managed;
std::map<uint64_t, uint64_t> g_captures;  // digest, by thread

std::span<std::byte> chunk_of(uint64_t number) {
  return std::span(g_managed).subspan(managed_chunk(number) * kManagedChunkBytes, kManagedChunkBytes);
}

void managed_write(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  if (call.bulk.remaining() != kManagedChunkBytes) return g_verdict->fail("a managed chunk of a wrong size");
  if (call.bulk.read(chunk_of(number))) finish(replay, call, CUDA_SUCCESS);
}

void managed_work_call(server::Replay& replay, server::Call& call) {
  managed_work(begin(call), g_managed);
  finish(replay, call, CUDA_SUCCESS);
}

void managed_read(server::Replay& replay, server::Call& call) {
  auto chunk = chunk_of(begin(call));
  auto bytes = std::make_shared<std::vector<std::byte>>(chunk.begin(), chunk.end());
  call.answered = true;
  send_result(replay, call.header.sequence, CUDA_SUCCESS, *bytes, bytes);
}

void capture_begin(server::Replay& replay, server::Call& call) {
  g_captures[begin(call) >> 32] = 0;
  finish(replay, call, CUDA_SUCCESS);
}

void capture_node(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  uint64_t& digest = g_captures[number >> 32];
  digest = captured_with(digest, number);
  finish(replay, call, CUDA_SUCCESS);
}

void capture_end(server::Replay& replay, server::Call& call) {
  uint64_t digest = g_captures[begin(call) >> 32];
  auto bytes = std::make_shared<std::vector<std::byte>>(sizeof digest);
  std::memcpy(bytes->data(), &digest, sizeof digest);
  call.answered = true;
  send_result(replay, call.header.sequence, CUDA_SUCCESS, *bytes, bytes);
}

// --- host functions ---

// The device's stream: runs the driver's queued work in order.
class Stream {
 public:
  ~Stream() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void run(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return over_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool over_ = false;
  std::thread thread_{[this] { serve(); }};
};

test::FakeDriver* g_driver = nullptr;
std::unique_ptr<Stream> g_stream;

void callback(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  finish(replay, call,
         replay.state().callbacks().enqueue(replay, nullptr, number, server::HostCallbacks::Kind::host_function));
  if (!g_stream) g_stream = std::make_unique<Stream>();
  g_stream->run(std::move(g_driver->host_functions.back()));
  g_driver->host_functions.pop_back();
}

void callback_done(server::Replay& replay, server::Call& call) {
  begin(call);
  // The message has the call's number, which begin() reads, and the host function's.
  auto message = call.message.getRoot<schema::CopyData>();
  if (!replay.state().callbacks().done(message.getOffset()))
    g_verdict->fail("a host function was answered twice, or never asked for");
  finish(replay, call, CUDA_SUCCESS);
}

// Blocks like a driver call: only the out-of-order reader can find the answers that it waits for.
void drain(server::Replay& replay, server::Call& call) {
  begin(call);
  while (replay.state().callbacks().unanswered() != 0 && !g_verdict->failed())
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  finish(replay, call, CUDA_SUCCESS);
}

constexpr server::ReplayEntry kEntries[] = {
    {.function = note, .name = "note", .posted = true, .bulk_bytes_max = wire::kBulkBytesMax},
    {.function = echo, .name = "echo", .bulk_bytes_max = wire::kBulkBytesMax},
    {.function = later, .name = "later"},
    {.function = notice, .name = "notice", .posted = true},
    {.function = managed_write, .name = "managed_write", .posted = true, .bulk_bytes_max = kManagedChunkBytes},
    {.function = managed_work_call, .name = "managed_work", .posted = true},
    {.function = managed_read, .name = "managed_read"},
    {.function = capture_begin, .name = "capture_begin", .posted = true},
    {.function = capture_node, .name = "capture_node", .posted = true},
    {.function = capture_end, .name = "capture_end"},
    {.function = callback, .name = "callback", .posted = true},
    {.function = callback_done, .name = "callback_done", .posted = true, .out_of_turn = true},
    {.function = drain, .name = "drain"}};

}  // namespace

void set_scene(Executed* executed, Verdict* verdict) {
  g_executed = executed;
  g_verdict = verdict;
  g_managed.assign(kManagedChunks * kManagedChunkBytes, std::byte{0});
  g_captures.clear();
}

void set_driver(test::FakeDriver* driver) { g_driver = driver; }
void end_scene() { g_stream.reset(); }

server::CallTable server_calls() {
  server::CallTable table{};
  for (size_t i = 0; i < std::size(kEntries); ++i) table[uint32_t(Ordinal::note) + i] = &kEntries[i];
  return table;
}

}  // namespace gpuwire::simulation
