#include "server/broker/suspension/eviction_mover.hpp"

#include <chrono>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

using ipc::MoveResult;

SuspenderProcess::Events EvictionMover::between(SuspenderProcess::Events events) {
  events_ = std::move(events);
  return {.ready = [this] { events_.ready(); },
          .moved = [this](const ipc::Moved& moved) { rest_moved(moved); },
          .gone =
              [this] {
                // A worker's answer that is still to come concerns no order any more.
                order_.reset();
                timer_.cancel();
                events_.gone();
              }};
}

bool EvictionMover::send(scheduler::SessionId session, ipc::Move order) {
  order_ = Order{.session = session, .number = order.order, .process_id = order.process_id};
  if (order.resume) {
    order_->step = Step::rest_in;
    if (parts_.suspender.send(session, std::move(order))) return true;
    order_.reset();
    return false;
  }
  // The result comes later than this call returns, whatever happens.
  boost::asio::post(parts_.io, lifetime_.guard([this, number = order.order] {
    if (order_ && order_->number == number) ask_worker(Step::blocks_out, false);
  }));
  return true;
}

void EvictionMover::ask_worker(Step step, bool back) {
  order_->step = step;
  if (!parts_.control.send(order_->session, ipc::MoveBlocks{back}))
    return finish(step == Step::blocks_out ? MoveResult::refused : MoveResult::lost, "its process takes no orders");
  timer_.expires_after(std::chrono::milliseconds(kBlocksMoveMs));
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error && order_)
      finish(MoveResult::lost, fmt::format("its process has not moved it within {} s", kBlocksMoveMs / 1000));
  }));
}

void EvictionMover::ask_suspender(Step step, bool resume) {
  order_->step = step;
  OwnedDescriptor process = parts_.control.worker_process(order_->session);
  if (!process) return finish(MoveResult::lost, "its process cannot be reached");
  ipc::Move move{order_->number, order_->process_id, resume, std::move(process)};
  // A suspender that has ended a moment ago: Events::gone follows, and the order is given again.
  parts_.suspender.send(order_->session, std::move(move));
}

void EvictionMover::blocks_moved(const ipc::BlocksMoved& moved) {
  switch (order_->step) {
    case Step::blocks_out:
      if (moved.back) return;  // an answer to an earlier order
      timer_.cancel();
      if (moved.result == MoveResult::done) return ask_suspender(Step::rest_out, false);
      return finish(moved.result == MoveResult::refused ? MoveResult::refused : MoveResult::lost, moved.why);
    case Step::undo:
      if (!moved.back) return;
      timer_.cancel();
      if (moved.result == MoveResult::done) return finish(order_->result.result, order_->result.why);
      return finish(MoveResult::lost, moved.why);
    case Step::blocks_in:
      if (!moved.back) return;
      timer_.cancel();
      if (moved.result != MoveResult::no_room) return finish(moved.result, moved.why);
      order_->result = {order_->number, MoveResult::no_room, moved.why};
      return ask_suspender(Step::rest_out_again, false);
    case Step::rest_out:
    case Step::rest_in:
    case Step::rest_out_again: return;  // the worker repeats itself
  }
}

void EvictionMover::rest_moved(const ipc::Moved& moved) {
  if (!order_ || moved.order != order_->number) return;
  switch (order_->step) {
    case Step::rest_out:
      if (moved.result != MoveResult::refused) return finish(moved.result, moved.why);
      order_->result = moved;
      return ask_worker(Step::undo, true);
    case Step::rest_in:
      if (moved.result == MoveResult::done) return ask_worker(Step::blocks_in, true);
      return finish(moved.result, moved.why);
    case Step::rest_out_again:
      if (moved.result == MoveResult::done) return finish(order_->result.result, order_->result.why);
      return finish(moved.result == MoveResult::gone ? MoveResult::gone : MoveResult::lost, moved.why);
    case Step::blocks_out:
    case Step::undo:
    case Step::blocks_in: return;
  }
}

void EvictionMover::finish(MoveResult result, std::string why) {
  timer_.cancel();
  const uint64_t number = order_->number;
  order_.reset();
  events_.moved({number, result, std::move(why)});
}

tl::expected<void, std::string> EvictionMover::attach(const SessionRecord& session, SessionSpec& spec,
                                                      ipc::SessionDescriptors&) {
  const Tenant* tenant = parts_.tenants.find(session.tenant_id);
  spec.evicts = tenant && tenant->settings.suspend_eviction;
  return {};
}

bool EvictionMover::on_message(const SessionRecord& session, ipc::Message& message) {
  auto* moved = std::get_if<ipc::BlocksMoved>(&message);
  if (!moved) return false;
  if (order_ && order_->session == session.number) blocks_moved(*moved);
  return true;
}

// The suspender answers for a process that has ended; a worker does not.
void EvictionMover::ended(const SessionRecord& session) {
  if (!order_ || order_->session != session.number) return;
  const Step step = order_->step;
  if (step == Step::blocks_out || step == Step::undo || step == Step::blocks_in) finish(MoveResult::gone);
}

}  // namespace gpuwire::server
