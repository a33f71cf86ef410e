// Reads the connection while the executor cannot.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "protocol/wire/frame_decoder.hpp"
#include "server/replay/replay.hpp"
#include "server/worker/connection/frame_source.hpp"
#include "server/worker/limits.hpp"

namespace gpuwire::server {

// A thread that sleeps until a stream waits for an answer of the client. From then on it checks every
// kOutOfOrderReaderTickUs whether the executor is still in the same call. If so, it reads ahead in the executor's
// place, executes the frames that need not wait for those before them (ReplayEntry::out_of_turn: the answers), and
// stores everything as it came for the executor, until that is back or no answer is awaited. It does the same, at once,
// while a thread waits for room in the window: the link takes acknowledgements out of the read bytes. When it is told
// that the executor is in one call for long, it stores arrived bytes without scanning them: the connection's end may be
// behind them.
class OutOfOrderReader {
 public:
  struct Parts {
    FrameSource& source;
    // Does a stream wait for an answer? Any thread.
    std::function<bool()> awaited;
    // Does a thread wait for room in the window, which comes with the client's acknowledgements, or for news of the
    // connection's end? Any thread.
    std::function<bool()> room_awaited = [] { return false; };
    // Is this a call that may be executed out of turn? Null: no.
    std::function<const ReplayEntry*(const wire::FrameHeader& header)> out_of_turn;
    // Executes it; throws the replay's exceptions on bad bytes.
    std::function<void(const ReplayEntry& entry, Call& call)> execute;
    // The client has sent invalid bytes.
    std::function<void(std::string reason)> fault;
    size_t kept_bytes_max = kKeptBytesMax;
    size_t kept_while_busy_max = kKeptWhileBusyBytesMax;
  };
  explicit OutOfOrderReader(Parts parts) : parts_(std::move(parts)), decoder_(wire::Sender::client) {}
  ~OutOfOrderReader() { stop(); }
  OutOfOrderReader(const OutOfOrderReader&) = delete;
  OutOfOrderReader& operator=(const OutOfOrderReader&) = delete;

  // From now on answers may be awaited. Any thread.
  void start();
  // An answer is awaited, or room. Any thread, after start().
  void awake();
  // Reads the arrived bytes if the executor does not, and stores them, up to kept_while_busy_max. Any thread, after
  // start().
  void keep_what_has_come();
  // Is the caller this object's thread, any session's? It executes calls and must not wait for bytes that it alone can
  // read.
  static bool is_caller();
  // Ends the thread. Executor; the source is its alone again.
  void stop();

 private:
  void run();
  // False: the executor reads.
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
  std::condition_variable changed_;
  bool stopping_ = false;  // under mutex_
  bool asleep_ = false;    // under mutex_
  bool keeps_ = false;     // under mutex_: keep_what_has_come() was called
  std::thread thread_;

  // The thread's own.
  bool blind_ = false;  // the connection has ended or has invalid bytes: the executor will find it
  wire::FrameDecoder decoder_;
  uint64_t skip_ = 0;  // bulk of the frame that the executor has in hand, before the first frame to look at
  const ReplayEntry* entry_ = nullptr;  // of the frame in hand, when it is executed here
  std::vector<capnp::word> message_;    // of that frame
  std::vector<std::byte> bulk_;         // of that frame, as far as it has arrived
  bool in_frame_ = false;
  uint64_t seen_ = 0;  // sequence of the last whole frame
  static constexpr uint64_t kNothingScanned = ~uint64_t{0};
  uint64_t received_ = kNothingScanned;  // the source's count when the role was laid down
};

}  // namespace gpuwire::server
