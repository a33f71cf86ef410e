// EvictionMover carries out a session's move in two parts: the session's worker moves its evictable blocks
// (server/driver/evictable), and the suspender the rest of its device memory.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/admission/tenants.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspender_process.hpp"

namespace gpuwire::server {

// The parts of the broker that it uses; all outlive it.
struct EvictionMoverParts {
  boost::asio::io_context& io;
  SessionControl& control;
  const TenantDirectory& tenants;
  Mover& suspender;
};

// To the host: the blocks, then the rest. If the rest cannot go, the blocks come back, and the move was refused.
// Back: the rest, then the blocks. If the device has no room for the blocks, the rest goes to the host again, and the
// move had no room.
//
// Each step begins with the state of the worker or the process, so an order that was interrupted may be given again, to
// a new suspender or by a new broker. A session without evictable blocks answers its steps at once.
//
// The broker's thread only. One order at a time, like the suspender's.
class EvictionMover final : public Mover, public SessionAttachments {
 public:
  explicit EvictionMover(EvictionMoverParts parts) : parts_(parts), timer_(parts.io) {}

  // `events`: the receiver of the results. Returns the handlers of the suspender's events.
  SuspenderProcess::Events between(SuspenderProcess::Events events);

  std::string why_no_moves() const override { return parts_.suspender.why_no_moves(); }
  bool send(scheduler::SessionId session, ipc::Move order) override;

  // Decides for the session's life whether its large allocations are evictable.
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors&) override;
  bool on_message(const SessionRecord& session, ipc::Message& message) override;
  void ended(const SessionRecord& session) override;

 private:
  // rest_out and rest_in: the suspender's. undo: the blocks come back, because the rest has not left. rest_out_again:
  // the rest leaves, because the blocks have no room.
  enum class Step : uint8_t { blocks_out, rest_out, undo, rest_in, blocks_in, rest_out_again };
  struct Order {
    scheduler::SessionId session{};
    uint64_t number = 0;
    uint32_t process_id = 0;
    Step step = Step::blocks_out;
    ipc::Moved result{};  // of the whole order, while steps undo its parts
  };

  void ask_worker(Step step, bool back);
  void ask_suspender(Step step, bool resume);
  void blocks_moved(const ipc::BlocksMoved& moved);
  void rest_moved(const ipc::Moved& moved);
  void finish(ipc::MoveResult result, std::string why = {});

  const EvictionMoverParts parts_;
  SuspenderProcess::Events events_;
  std::optional<Order> order_;
  boost::asio::steady_timer timer_;  // of the worker's answer
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
