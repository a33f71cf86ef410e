// The receiving half of a session's link: decodes bytes into checked frames and their bulk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "protocol/link/link.hpp"
#include "protocol/wire/frame_decoder.hpp"
#include "server/replay/replay.hpp"
#include "server/worker/connection/byte_queue.hpp"
#include "server/worker/connection/link_meter.hpp"

namespace gpuwire::server {

// Reads a link for one thread, the executor. Does not own it. The replacement of a connection only makes a read last
// longer.
//
// A second thread may read ahead while the executor is blocked in a call (out_of_order_reader.hpp): the link's
// receiving side belongs to the holder of the role. The bytes that the second thread has read are stored in order, and
// the executor reads them before those in the socket.
class FrameSource final : public BulkReader {
 public:
  // `spin_us`: the time for which the executor polls the connection after the last bytes before it sleeps in the
  // kernel. Link::interrupt() ends every wait. `account`: is charged for stored bytes.
  FrameSource(link::Link& link, LinkMeter& meter, uint32_t spin_us, HostMemory* account = nullptr)
      : link_(link), meter_(meter), spin_us_(spin_us), decoder_(wire::Sender::client), kept_(account) {}
  // Sets the word by which the broker permits longer polling; it outlives the source. Called before the first wait.
  void poll_longer(const std::atomic<uint32_t>& us) { longer_us_ = &us; }
  // Declares that the client sends heartbeats. Executor, before the first frame behind Hello.
  void expect_heartbeats() { heartbeats_ = true; }
  // Sets the observer that is called before the executor sleeps for lack of bytes, and after that; heartbeats do not
  // call it. Called before the first wait.
  void observe_sleep(std::function<void(bool sleeps)> observer) { observer_ = std::move(observer); }

  // Sets the word that ends a wait for the first byte of a frame (`late`), after link's wake(). It outlives the source.
  // Called before the first wait.
  void attend(const std::atomic<bool>& word) { attention_ = &word; }

  enum class Next : uint8_t {
    frame,
    // The link has ended or was interrupted.
    ended,
    // The peer has sent invalid bytes, and fault() has the reason. No later frame can be read.
    fault,
    // The deadline has passed, or the word of attend() is set.
    late,
  };
  // --- the executor's ----------------------------------------------------------------------------------------------
  // Waits for the next frame; unread bulk of the previous one is discarded first. `deadline_ms` < 0: no limit.
  Next next(int deadline_ms = -1);

  // Returns the frame of the last next(); valid until the next call of next().
  const wire::FrameHeader& header() const { return decoder_.header(); }
  kj::ArrayPtr<const capnp::word> message() const { return decoder_.message(); }
  const std::string& fault() const { return decoder_.fault(); }
  // Returns whether the second thread has scanned this frame, and executed it if it is `out_of_turn`.
  bool seen_ahead() const { return seen_ahead_; }
  // Declares this frame executed; later frames may wait for answers of the client.
  void finish_frame() { finished_.store(header().sequence, std::memory_order_release); }
  // Returns the position in the client's stream behind this frame and its bulk.
  uint64_t frame_end() const { return frame_end_; }

  // Returns the time that the executor has waited for bytes of frames and bulk.
  std::chrono::nanoseconds waited() const { return waited_; }

  // Returns whether the client has sent anything after the present frame and its bulk. Costs one system call at most.
  bool input_pending();

  uint64_t remaining() const override { return decoder_.bulk_left(); }
  bool read(std::span<std::byte> out) override;
  // Returns whether a read was interrupted. The present frame then has only a part of its bulk.
  bool broken() const { return broken_; }

  // Gives the role to the executor permanently, before the second thread ends.
  void keep();

  // --- the second thread's -----------------------------------------------------------------------------------------
  // Returns a count that changes whenever the executor reads again.
  uint64_t visits() const { return visits_.load(std::memory_order_relaxed); }
  // Takes the role. Returns false if the executor reads.
  bool take_over();
  void give_back();
  // With the role: returns the bytes that the executor has received and not used, and the number of following bytes
  // that are bulk of the present frame.
  std::span<const std::byte> unused() const { return decoder_.buffered(); }
  uint64_t bulk_in_hand() const { return decoder_.bulk_left(); }
  // With the role: returns the number of bytes that the executor has read from the socket itself.
  uint64_t received() const { return received_; }
  enum class Ahead : uint8_t { some, wanted, ended, no_memory, none_yet };
  // With the role: waits for more bytes, stores them and returns them in `bytes`. wanted: the executor requests the
  // role. no_memory: the account has no room for them. none_yet: there are none, and `wait` is false.
  Ahead read_ahead(std::span<const std::byte>& bytes, bool wait = true);
  size_t kept_bytes() const { return kept_.size(); }
  // With the role: visits all stored bytes, oldest first.
  template <class Visit>
  void for_each_kept(Visit&& visit) const {
    kept_.for_each(visit);
  }
  // Any thread: returns whether finish_frame() has been called for this frame.
  bool finished(const wire::FrameHeader& header) const {
    return header.sequence <= finished_.load(std::memory_order_acquire);
  }
  // With the role: declares all frames up to this one scanned.
  void set_seen(uint64_t sequence) { seen_ = sequence; }

 private:
  enum class Role : uint32_t { executor, nobody, out_of_order_reader };
  enum class Filled : uint8_t { some, ended, late };
  // The executor holds the role while this exists.
  class Use {
   public:
    explicit Use(FrameSource& source) : source_(source) {
      if (!source_.kept_role_) [[likely]]
        source_.reclaim();
    }
    ~Use() {
      if (!source_.kept_role_) [[likely]]
        source_.role_.store(Role::nobody, std::memory_order_release);
    }

   private:
    FrameSource& source_;
  };
  using Clock = std::chrono::steady_clock;

  void reclaim();
  Next next_frame(int deadline_ms);
  bool read_bulk(std::span<std::byte> out);
  // Without a deadline the function waits without a limit.
  Filled fill(const std::optional<Clock::time_point>& deadline);
  bool discard_bulk();
  bool take_heartbeats(std::span<const std::byte> bytes);

  link::Link& link_;
  LinkMeter& meter_;
  const uint32_t spin_us_;
  // Another process writes the word at any time; it publishes nothing, so relaxed.
  const std::atomic<uint32_t>* longer_us_ = nullptr;
  // Relaxed: the wake-up follows the store.
  const std::atomic<bool>* attention_ = nullptr;
  std::function<void(bool)> observer_;
  wire::FrameDecoder decoder_;
  bool broken_ = false;
  bool heartbeats_ = false;
  bool seen_ahead_ = false;
  // A sequence number; its partner is the load in finished().
  std::atomic<uint64_t> finished_{0};
  bool kept_role_ = false;
  uint64_t frame_end_ = 0;
  Clock::duration waited_{};
  // The bytes in the decoder that were not taken.
  uint64_t buffered_ = 0;

  // The owner of the socket and the following members. Release when the role is given up, acquire when it is taken:
  // each owner finds the previous owner's writes.
  std::atomic<Role> role_{Role::nobody};
  // The executor waits for the role; nobody else takes it before the executor has had it. Relaxed: set while the
  // out-of-order reader holds the role and before the reader is woken in the link, so the reader sees it after waking.
  std::atomic<bool> awaited_{false};
  // Only compared, so relaxed.
  std::atomic<uint64_t> visits_{0};
  ByteQueue kept_;
  uint64_t received_ = 0;
  uint64_t seen_ = 0;
};

}  // namespace gpuwire::server
