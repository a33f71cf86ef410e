// Reads the connection while the executor is blocked.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/wire/frame_decoder.hpp"
#include "server/replay/replay.hpp"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {

// A thread that sleeps until a stream waits for an answer of the client. From then on it checks every
// kOutOfOrderReaderTickUs whether the executor is still in the same call. If so, the thread reads in the executor's
// place, executes the frames that need not wait for earlier ones (ReplayEntry::out_of_turn: the answers), and stores
// all bytes in order for the executor, until the executor returns or no answer is awaited. It also reads, at once,
// while a thread waits for room in the window: the link finds acknowledgements in the read bytes. When notified that
// the executor is in one call for long, the thread stores arrived bytes without scanning them, because the connection's
// end may follow them.
class OutOfOrderReader {
 public:
  struct Parts {
    FrameSource& source;
    // Returns whether a stream waits for an answer. Any thread.
    std::function<bool()> awaited;
    // Returns whether a thread waits for room in the window, which comes with the client's acknowledgements, or for the
    // connection's end. Any thread.
    std::function<bool()> room_awaited = [] { return false; };
    // Returns the entry of a call that may be executed out of turn, else null.
    std::function<const ReplayEntry*(const wire::FrameHeader& header)> out_of_turn;
    // Executes such a call; throws the replay's exceptions on invalid bytes.
    std::function<void(const ReplayEntry& entry, Call& call)> execute;
    // Called when the client has sent invalid bytes.
    std::function<void(std::string reason)> fault;
    size_t kept_bytes_max = kKeptBytesMax;
    size_t kept_while_busy_max = kKeptWhileBusyBytesMax;
  };
  explicit OutOfOrderReader(Parts parts) : parts_(std::move(parts)), decoder_(wire::Sender::client) {}
  ~OutOfOrderReader() { stop(); }
  OutOfOrderReader(const OutOfOrderReader&) = delete;
  OutOfOrderReader& operator=(const OutOfOrderReader&) = delete;

  // Starts the thread, before an answer may be awaited. Any thread.
  void start();
  // Wakes the thread, because an answer or room is awaited. Any thread, after start().
  void awake();
  // Has the thread read and store arrived bytes, up to kept_while_busy_max, if the executor does not read. Any thread,
  // after start().
  void keep_what_has_come();
  // Returns whether the calling thread is a session's out-of-order reader, which executes calls and must not wait for
  // bytes that only it can read.
  static bool is_caller();
  // Ends the thread. Executor; afterwards only the executor uses the source.
  void stop();

 private:
  void run();
  // Reads in the executor's place. Returns false if the executor reads.
  bool serve();
  void keep_reading();
  void keep_without_waiting();
  bool more_to_read() const { return parts_.awaited() || parts_.room_awaited(); }
  bool within_bound();
  void catch_up();
  void put_in(std::span<const std::byte> bytes);
  void scan();
  void begin_frame();
  bool end_frame();
  void give_up(std::string reason);

  const Parts parts_;
  std::mutex mutex_;
  Condition changed_;
  // Under mutex_.
  bool stopping_ = false;
  // Under mutex_.
  bool asleep_ = false;
  // Under mutex_: keep_what_has_come() was called.
  bool keeps_ = false;
  std::thread thread_;

  // Used only by the thread.
  // The connection has ended or has invalid bytes, which the executor will find.
  bool blind_ = false;
  wire::FrameDecoder decoder_;
  // The remaining bulk of the executor's present frame, before the first frame to scan.
  uint64_t skip_ = 0;
  // The entry of the present frame, if this thread executes it.
  const ReplayEntry* entry_ = nullptr;
  // The message of that frame.
  std::vector<capnp::word> message_;
  // The bulk of that frame, as far as it has arrived.
  std::vector<std::byte> bulk_;
  bool in_frame_ = false;
  // The sequence of the last whole frame.
  uint64_t seen_ = 0;
  static constexpr uint64_t kNothingScanned = ~uint64_t{0};
  // The source's count when the role was given up.
  uint64_t received_ = kNothingScanned;
};

}  // namespace gpuwire::server
