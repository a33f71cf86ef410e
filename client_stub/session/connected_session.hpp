// The Session over one connection. README.md draws its threads and locks.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client_stub/session/login.hpp"
#include "client_stub/session/login_settings.hpp"
#include "client_stub/session/cached_bulk.hpp"
#include "client_stub/session/lane_opener.hpp"
#include "client_stub/session/outgoing.hpp"
#include "client_stub/session/reconnection.hpp"
#include "client_stub/session/reply_table.hpp"
#include "client_stub/session/road.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/session_thread.hpp"
#include "client_stub/session/transfer_progress.hpp"
#include "protocol/link/heartbeat.hpp"
#include "protocol/link/link.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

class ConnectedSession final : public Session, public Road {
 public:
  // Enters the server over the connected `transport`, as Session::connect() does; `address` is the name in error lines.
  // With the address `server` the session can reconnect.
  static CUresult start(std::unique_ptr<transport::Transport> transport, std::string address, NoticeHandler& notices,
                        std::unique_ptr<Session>& session, std::string& error, const Entry& entry = {},
                        const ServerAddress* server = nullptr);

  // Hello and Welcome over a connection of enter().
  static tl::expected<std::unique_ptr<ConnectedSession>, SessionStartError> greet(
      std::unique_ptr<transport::Transport> transport, const std::string& address, NoticeHandler& notices,
      const ServerAddress* server = nullptr, const link::LinkLimits& limits = {},
      std::shared_ptr<const Entry> entry = nullptr);

  ConnectedSession(std::unique_ptr<transport::Transport> transport, NoticeHandler& notices,
                   const link::LinkLimits& limits = {});
  // Waits for the session thread. Must not run in a child after fork().
  ~ConnectedSession() override;

  const ServerFacts& facts() const noexcept override { return facts_; }
  std::shared_ptr<std::byte> keep(size_t bytes) noexcept override { return kept_.take(bytes); }
  SessionStats& stats() noexcept override;
  CUresult state() const noexcept override;
  CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
                 Slot& slot) noexcept override;
  void commit(Slot& slot, size_t words_used) noexcept override;
  void abandon(Slot& slot) noexcept override;
  CUresult wait(uint64_t sequence, ReplyReader read, void* user, const BulkSink& sink) noexcept override;
  void expect_reply(Slot& slot, const BulkSink& sink) noexcept override;
  void set_aside(uint64_t sequence) noexcept override;
  std::shared_ptr<TransferProgress> progress() const noexcept override { return progress_; }
  void note_moved(Direction direction, uint64_t bytes) noexcept override { traffic_.note_beside(direction, bytes); }
  uint64_t appended_bytes() const noexcept override { return outgoing_.appended_bytes(); }
  void flush() noexcept override;
  void poll() noexcept override;
  const char* road_name() const override { return link_.transport()->road(); }
  Lanes lanes() const noexcept override;
  // Sent bytes that the link stores until the server has acknowledged them.
  link::Link::Kept kept() const { return link_.kept(); }
  bool give_descriptor(uint64_t number, int descriptor) noexcept override;
  void finish_sending() noexcept override;
  uint64_t last_sequence() const noexcept override { return outgoing_.last_sequence(); }
  void close() noexcept override;
  void hang_up() noexcept override;
  void take_back_from_left_call() noexcept override;
  void after_fork_in_child() noexcept override;

  // From now on the session replaces a lost connection, as long as the server keeps the session. `heartbeat` is the
  // interval of checks that the connection leads to the server; 0: only the system detects a dead connection.
  // Precondition: no call was made.
  struct LossGraces {
    // The server keeps the session for this long.
    std::chrono::milliseconds resume{0};
    // The same after a connection that was closed or reset.
    std::chrono::milliseconds hang_up{0};
  };
  void outlive_connections(std::unique_ptr<Reconnector> reconnector, const LossGraces& graces,
                           std::chrono::milliseconds heartbeat);
  // The session ends if the server does not answer a call for this long. Precondition: no call was made.
  void limit_answers(std::chrono::milliseconds most) { answer_time_max_ = most; }
  // Shows long transfers in `line`. Precondition: no call was made.
  void show_progress(std::unique_ptr<ProgressLine> line, TransferProgress::Now now = TransferProgress::Clock::now);

 private:
  friend class SessionThread;

  static constexpr const char* kLacksBytes = "a reply of success with fewer bytes than were asked for";

  struct OwnCall {
    PendingCall* call = nullptr;
    ReplyReader read = nullptr;
    void* user = nullptr;
    bool read_in_place = false;
    std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  };

  // The receiver's source: the link, except that a wait for bytes reconnects if the link is detached.
  class Arrivals final : public transport::ByteSource {
   public:
    explicit Arrivals(ConnectedSession& session) : session_(session) {}
    transport::IoResult try_receive(std::span<std::byte> out) noexcept override {
      return session_.link_.try_receive(out);
    }
    transport::IoResult receive_in_place(std::span<std::byte> out) noexcept override {
      return session_.link_.receive_in_place(out);
    }
    unsigned wait(unsigned interest, transport::Nanoseconds timeout) noexcept override {
      return session_.wait_receiving(interest, timeout);
    }

   private:
    ConnectedSession& session_;
  };

  class LinkTraffic final : public Traffic {
   public:
    explicit LinkTraffic(const link::Link& link) : link_(link) {}
    uint64_t moved_bytes(Direction direction) const noexcept override {
      const uint64_t beside = beside_[size_t(direction)].load(std::memory_order_relaxed);
      return beside + (direction == Direction::to_gpu ? link_.bytes_sent() : link_.received());
    }
    void note_beside(Direction direction, uint64_t bytes) noexcept {
      beside_[size_t(direction)].fetch_add(bytes, std::memory_order_relaxed);
    }
    bool has_left(uint64_t position) const noexcept override { return link_.sent(position); }

   private:
    const link::Link& link_;
    // Bytes that bypassed the link; statistics: relaxed.
    std::atomic<uint64_t> beside_[2] = {};
  };

  // --- receiving (receiving.cpp) -----------------------------------------------------------------------------------
  // Precondition: the receive role, and no lock. Ends the session on an error. Returns false if no whole frame has
  // arrived.
  bool receive_one(OwnCall* own);
  void dispatch(OwnCall* own);
  void take_reply(OwnCall* own);
  void take_notice();
  bool store_bulk(const BulkSink& sink, uint64_t bytes);
  // Acknowledges received bytes to the server, when an acknowledgement is due.
  void acknowledge_received();
  // Receives until `done` or the session's end: polls for a short time, then sleeps in the transport. Meanwhile sends
  // the unsent bytes before `bytes_end`. Precondition: the receive role.
  template <class Done>
  void lead(OwnCall* own, uint64_t bytes_end, Done done);
  // As Link::wait(). Precondition: the receive role.
  unsigned wait_receiving(unsigned interest, transport::Nanoseconds timeout) noexcept;
  // Called after bulk was sent, which may make lanes worthwhile. Thread: any.
  void poll_lanes() noexcept {
    if (lane_opener_) lane_opener_->poll();
  }
  // Checks the heartbeat if that is due. Thread: any.
  void poll_heartbeat() noexcept {
    if (heartbeat_) heartbeat_->poll(link::Heartbeat::Clock::now());
  }
  // Draws the progress of transfers if that is due. Thread: any.
  void poll_progress() noexcept {
    if (progress_) progress_->poll();
  }
  // Prints a line for the user; the terminal may show the progress.
  void notify(const std::string& text);
  // Sets how the system detects that the connection is dead.
  void watch_connection(transport::Transport& connection) const noexcept;
  // Returns `wait`, shortened to the next poll that is due.
  transport::Nanoseconds until_poll(transport::Nanoseconds wait) const noexcept;
  // Sleeps until the next attempt is due. Returns false if there is none; the session has then ended.
  bool await_next_attempt(const std::string& cause, CUresult result = CUDA_ERROR_DEVICE_UNAVAILABLE);
  void give_up_session(CUresult result, const std::string& cause);
  Reconnection::Graces graces_of_loss() const;
  // Returns when the link is attached again or has ended. Precondition: the receive role, and a detached link.
  void reconnect();
  void fault(std::string reason);
  void notify_everybody();
  // The room in the ring that the calling thread must leave free.
  static size_t reserve_bytes();
  // Returns whether this thread is inside a NoticeHandler.
  static bool in_notice_handler();
  static void leave_notice_handler();
  // Takes the receive role. Precondition: it is free. Lock: held.
  void take_role() noexcept {
    receiver_thread_ = pthread_self();
    receiving_ = true;
  }
  // Releases the receive role and wakes a thread that needs it. `lock` is on receive_mutex_.
  void pass_on_role(std::unique_lock<std::mutex>& lock);
  // For the session thread and poll(): receives arrived frames, unless another thread receives or is about to.
  bool receive_if_free();
  // For the session thread: sleeps until there is work, at most for this time.
  void thread_sleep(std::chrono::nanoseconds at_most);

  // --- waiting (connected_session.cpp) -----------------------------------------------------------------------------
  void await_reply(OwnCall& own);
  void give_up_call(uint64_t sequence);
  void await_sent(uint64_t bytes_end);
  // Abandons the calls of a thread that has left them: no thread waits for their replies, and no reply uses their
  // memory. Returns false if the thread had the role (`had_received`) and was filling another thread's reply.
  bool forget_left_calls(bool had_received);
  // Returns whether the role that close() needs becomes available soon. A thread that has left a call may hold it
  // forever.
  bool locks_are_free() noexcept;
  void await_room(uint64_t room_seen);
  class Stall;
  void count_stall(std::chrono::steady_clock::time_point begun) noexcept;
  // Receives, or waits for the receiving thread, until `done` or the session's end; may return earlier.
  template <class Done>
  void await_change(Done done);
  // Every end of the session executes this function, once. `notify`: the other side caused the end.
  void end(CUresult result, std::string reason, bool notify);
  bool ended() const { return ended_result_.load(std::memory_order_acquire) != CUDA_SUCCESS; }

  NoticeHandler& notices_;
  std::string address_;
  ServerFacts facts_;
  SessionStats stats_;
  CachedBulk kept_;
  link::Link link_;
  Outgoing outgoing_;

  // Null: the session ends with its connection. Set before the first call; used by the thread with the receive role.
  std::unique_ptr<Reconnector> reconnector_;
  LossGraces loss_graces_;
  std::chrono::milliseconds answer_time_max_ = kAnswerTimeMax;
  // Since the streams have moved for the last time.
  std::optional<Reconnection> attempts_;
  // The received bytes of the server's stream before the newest attempt.
  uint64_t received_before_ = 0;
  // The server's position in the client's stream when the lost connection began.
  uint64_t server_received_before_ = 0;
  // The server has received more than when the connection before the lost one began.
  bool server_has_received_ = false;
  // Set before the first call.
  unsigned lanes_most_ = 0;
  // As well; none: the session has no lanes. Uses the reconnector.
  std::optional<LaneOpener> lane_opener_;
  // Set before the first call; none: the system alone notices that a connection leads nowhere.
  std::optional<link::Heartbeat> heartbeat_;

  LinkTraffic traffic_{link_};
  // As well; null: without an observer.
  std::shared_ptr<TransferProgress> progress_;

  // Held by the thread that has the receive role (receiving_).
  Arrivals arrivals_{*this};
  transport::FrameReceiver receiver_;
  uint64_t notices_received_ = 0;
  // Is in the middle of a received frame, except for bulk on its way into a caller's memory.
  bool handling_ = false;
  std::unique_ptr<std::byte[]> scratch_;

  std::mutex receive_mutex_;
  // Guarded by receive_mutex_:
  // A thread has the receive role.
  bool receiving_ = false;
  // The thread that has the receiving role.
  pthread_t receiver_thread_{};
  // The session thread sleeps until the role is free.
  bool thread_awaits_role_ = false;
  // Calls in calls_ whose reply has not arrived, but for those set aside.
  unsigned awaited_ = 0;
  unsigned room_waiters_ = 0;
  ReplyTable calls_;
  // For await_room().
  Condition room_changed_;
  bool ending_ = false;

  // CUDA_SUCCESS until the session ends, then never changed again. Set with release after everything of the end is in
  // place, read with acquire by ended() and state().
  std::atomic<CUresult> ended_result_{CUDA_SUCCESS};
  // Set in the child after fork(), which has one thread; no partner.
  std::atomic<bool> forked_{false};
  // The caller closes: the end is not an error. Set before the connection is shut down, whose effect the readers see
  // after it.
  std::atomic<bool> closing_{false};
  // The time of the next poll(), by the steady clock; publishes nothing: relaxed.
  std::atomic<int64_t> next_poll_ns_{0};

  SessionThread thread_;
};

}  // namespace gpuwire::client
