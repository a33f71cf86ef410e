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
  // A tenant's memory with the host has changed (host_bytes()); may be empty.
  std::function<void(scheduler::TenantId)> host_changed = {};
};

// suspension_state.cpp has the table of each session's phases. The broker's thread only.
class Suspensions final : public SessionAttachments {
 public:
  explicit Suspensions(SuspensionParts parts) : parts_(std::move(parts)), return_timer_(parts_.io) {}

  // The result in words, or the reason why not.
  using Answer = tl::expected<std::string, std::string>;
  using Done = std::function<void(const Answer&)>;
  // Both answer once, perhaps before they return. A resume is answered, too, if the session waits for free memory.
  void suspend(scheduler::SessionId session, Done done);
  void resume(scheduler::SessionId session, Done done);
  // Returns the device memory of the tenant's sessions that is with the host, or on its way there or back.
  uint64_t host_bytes(scheduler::TenantId tenant) const;
  // Sets the bound of the device memory of all sessions that is with the host, or on its way there; 0: the machine's
  // available memory alone bounds it. A lower bound brings no session back.
  void set_memory_max(uint64_t bytes) { memory_max_bytes_ = bytes; }

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
    explicit Suspended(boost::asio::io_context& io) : answer_timer(io) {}
    SuspensionPhase phase = SuspensionPhase::running;
    scheduler::TenantId tenant{};
    uint64_t host_bytes = 0;
    std::vector<Done> suspends, resumes;     // administrators who wait for an answer
    boost::asio::steady_timer answer_timer;  // of the worker
  };
  using SessionId = scheduler::SessionId;

  std::string why_not(const SessionRecord& session) const;
  std::string why_no_host_room(const SessionRecord& session) const;
  SuspensionPhase phase_of(SessionId session) const;
  void happen(SessionId session, SuspensionChange change, const std::string& why = {});
  void act(SessionId session, SuspensionAction action, const std::string& why);
  void ask_worker(SessionId session);
  void count_host(Suspended& suspended, uint64_t bytes);
  void answer(SessionId session, std::vector<Done> Suspended::*who, const Answer& what);
  // Answers those who wait for the session's return that it waits for memory, if it does.
  void answer_waiting(SessionId session);
  void poll_returns();
  void poll_returns_later();
  // Orders the next move, if none is under way.
  void next_move();
  void moved(const ipc::Moved& result);

  const SuspensionParts parts_;
  uint64_t memory_max_bytes_ = 0;
  std::map<SessionId, std::unique_ptr<Suspended>> sessions_;  // those that are not simply running
  std::deque<SessionId> moves_;                               // sessions with a move to be ordered, oldest first
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
