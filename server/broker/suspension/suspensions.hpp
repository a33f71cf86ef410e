// Suspensions moves idle sessions' device memory to the host, and back when their programs go on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "scheduler/types.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspender_process.hpp"
#include "server/broker/suspension/suspension_memory.hpp"
#include "server/broker/suspension/suspension_state.hpp"

namespace gpuwire::server {

// The parts of the broker that suspensions use; all outlive them.
struct SuspensionParts {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  SessionControl& control;
  SuspensionMemory& memory;
  Mover& mover;
  std::function<uint64_t()> host_available;  // the machine's available memory; 0: unknown
  // Returns the bound of host_bytes() of a tenant; 0: it has none. Without it no tenant has one.
  std::function<uint64_t(scheduler::TenantId)> tenant_memory_max = {};
  // Returns the bound of the memory of all sessions with the host for suspensions that users ask for, if neither the
  // server nor the tenant has a bound; 0: none. Without it there is none.
  std::function<uint64_t()> users_memory_max = {};
  // A tenant's memory with the host has changed (host_bytes()); may be empty.
  std::function<void(scheduler::TenantId)> host_changed = {};
  std::function<scheduler::Time()> now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
};

// For whom a session is suspended.
struct SuspensionRequester {
  std::string name = "an administrator";  // for the audit
  // It is a suspended session: sessions that wait for memory return before others get the released memory.
  bool returns = false;
  bool user = false;  // the session's own user asks for it
};

// A session's last return to the device.
struct SessionReturn {
  scheduler::Time at{};
  scheduler::Duration took{};  // from the time when the device had room
};

// suspension_state.cpp has the table of each session's phases. The broker's thread only.
class Suspensions final : public SessionAttachments {
 public:
  explicit Suspensions(SuspensionParts parts) : parts_(std::move(parts)), return_timer_(parts_.io) {}

  // Called when a session has begun to wait for memory to return.
  void set_return_waits(std::function<void()> waits) { return_waits_ = std::move(waits); }
  // Decides whether a session that waits for memory may take it now; without it all may.
  void set_may_return(std::function<bool(const SessionRecord&)> may) { may_return_ = std::move(may); }

  // Tells why a session must not return, because an administrator wants that; empty: it may. Without it all may.
  void set_why_held(std::function<std::string(const SessionRecord&)> why) { why_held_ = std::move(why); }
  std::string why_held(const SessionRecord& session) const { return why_held_ ? why_held_(session) : std::string(); }

  // The result in words, or the reason why not.
  using Answer = tl::expected<std::string, std::string>;
  using Done = std::function<void(const Answer&)>;
  // Both answer once, perhaps before they return. A resume is answered, too, if the session waits for free memory.
  void suspend(scheduler::SessionId session, Done done) { suspend(session, SuspensionRequester(), std::move(done)); }
  void suspend(scheduler::SessionId session, const SuspensionRequester& requester, Done done);
  void resume(scheduler::SessionId session, Done done);
  // Returns the device memory of the tenant's sessions, without session `but`, that is with the host, or on its way
  // there or back.
  uint64_t host_bytes(scheduler::TenantId tenant, std::optional<scheduler::SessionId> but = {}) const;
  // Sets the bound of the device memory of all sessions that is with the host, or on its way there; 0: the machine's
  // available memory alone bounds it. A lower bound brings no session back.
  void set_memory_max(uint64_t bytes) { memory_max_bytes_ = bytes; }
  // Returns the bytes of device memory that may go to the host beyond those that are on their way there; the second
  // one, the part of the tenant's bound that is left.
  uint64_t host_room() const;
  uint64_t host_room(scheduler::TenantId tenant) const;
  // Returns why no session can be suspended now; empty: sessions can.
  std::string why_no_moves() const { return parts_.mover.why_no_moves(); }

  SuspensionPhase phase_of(scheduler::SessionId session) const;
  // The sessions that wait for memory to return, oldest first.
  const std::deque<scheduler::SessionId>& returns() const { return returns_; }
  // Nothing: the session has not returned. A session of an earlier broker has its last return in its entry.
  std::optional<SessionReturn> last_return(scheduler::SessionId session) const;

  // Returns the handlers of the process's events.
  SuspenderProcess::Events mover_events();

  tl::expected<void, std::string> attach(const SessionRecord&, SessionSpec&, ipc::SessionDescriptors&) override {
    return {};
  }
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void all_adopted() override {
    poll_returns();
    next_move();
  }
  void ended(const SessionRecord& session) override;
  bool on_message(const SessionRecord& session, ipc::Message& message) override;

 private:
  struct Suspended {
    explicit Suspended(boost::asio::io_context& io) : answer_timer(io), notice_timer(io) {}
    SuspensionPhase phase = SuspensionPhase::running;
    scheduler::TenantId tenant{};
    uint64_t host_bytes = 0;
    SuspensionRequester requester;
    bool wanted = false;                     // while it moves out: its client has made a call, and it is held
    scheduler::Time room_at{};               // since then its memory has room on the device
    std::vector<Done> suspends, resumes;     // requesters that wait for an answer
    boost::asio::steady_timer answer_timer;  // of the worker
    boost::asio::steady_timer notice_timer;  // until its client is told that a call waits
  };
  using SessionId = scheduler::SessionId;

  std::string why_not(const SessionRecord& session, const SuspensionRequester& requester) const;
  // The bytes with the host, or on their way there; the second one: those that have not moved yet.
  struct OnHost {
    uint64_t all = 0, moving = 0;
  };
  OnHost on_host(std::optional<SessionId> but) const;
  std::string why_no_host_room(const SessionRecord& session, const SuspensionRequester& requester) const;
  uint64_t tenant_memory_max(scheduler::TenantId tenant) const {
    return parts_.tenant_memory_max ? parts_.tenant_memory_max(tenant) : 0;
  }
  void happen(SessionId session, SuspensionChange change, const std::string& why = {});
  // Its memory is wanted on the device. A held session moves out first.
  void want(SessionId session);
  void act(SessionId session, SuspensionAction action, const std::string& why);
  void ask_worker(SessionId session);
  void count_host(Suspended& suspended, uint64_t bytes);
  void answer(SessionId session, std::vector<Done> Suspended::*who, const Answer& what);
  // Answers those who wait for the session's return that it waits for memory, if it does.
  void answer_waiting(SessionId session);
  // Gives the memory of a session that was just suspended to those who wait for memory; first to returning sessions, or
  // last.
  void offer(bool to_returns_first);
  // Tells the client once that its call waits, if it does after a while.
  void notify_later(SessionId session);
  void notify(SessionId session);
  // Returns the answer to those who resume a session that waits.
  std::string waits_text(SessionId session) const;
  void await_memory(SessionId session);
  void poll_returns();
  void poll_returns_later();
  // Orders the next move, if none is under way.
  void next_move();
  void moved(const ipc::Moved& result);

  const SuspensionParts parts_;
  std::function<void()> return_waits_;
  std::function<bool(const SessionRecord&)> may_return_;
  std::function<std::string(const SessionRecord&)> why_held_;
  uint64_t memory_max_bytes_ = 0;
  std::map<SessionId, std::unique_ptr<Suspended>> sessions_;  // those that are not simply running
  std::map<SessionId, SessionReturn> returned_;
  std::deque<SessionId> moves_;  // sessions with a move to be ordered, oldest first
  struct Order {
    uint64_t number = 0;
    SessionId session{};
  };
  std::optional<Order> under_way_;
  uint64_t last_order_ = 0;
  std::deque<SessionId> returns_;  // sessions that await memory, oldest first
  boost::asio::steady_timer return_timer_;
  bool polling_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
