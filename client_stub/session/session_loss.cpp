// A session's actions after the loss of its connection: it reconnects, or ends.
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "client_stub/session/connected_session.hpp"
#include "protocol/transport/stream.hpp"

namespace gpuwire::client {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void ConnectedSession::outlive_connections(std::unique_ptr<Reconnector> reconnector, const LossGraces& graces,
                                           std::chrono::milliseconds heartbeat) {
  reconnector_ = std::move(reconnector);
  loss_graces_ = graces;
  link_.outlive_connections();
  // If this side gives the connection up, the server must not take that for the program's end.
  if (heartbeat.count() > 0) heartbeat_.emplace(link_, link::GivingUp::resets, heartbeat);
  link_.while_waiting([this] {
    poll_heartbeat();
    poll_progress();
  });
  if (lanes_most_ != 0) lane_opener_.emplace(link_, *reconnector_, lanes_most_);
  watch_connection(*link_.transport());
  // The session thread sends the heartbeats, even if the program posts nothing.
  if (heartbeat_ && outgoing_.thread_is_wanted() && !thread_.start()) outgoing_.thread_is_unavailable();
}

void ConnectedSession::watch_connection(transport::Transport& connection) const noexcept {
  transport::notice_lost_peer(connection.descriptor(),
                              heartbeat_ ? transport::LostPeer::by_heartbeat : transport::LostPeer::replaceable);
}

Reconnection::Graces ConnectedSession::graces_of_loss() const {
  const link::Loss loss = link_.kind_of_loss();
  const bool ended = loss == link::Loss::closed || loss == link::Loss::reset;
  return {.tried = loss_graces_.resume, .told = ended ? loss_graces_.hang_up : loss_graces_.resume};
}

void ConnectedSession::reconnect() {
  if (link_.damaged())
    return end(CUDA_ERROR_DEVICE_UNAVAILABLE, "the connection to the server can no longer be used: " + link_.loss(),
               true);
  // The server closes the connection after this side's goodbye.
  if (closing_.load(std::memory_order_relaxed)) return;
  stats_.losses.fetch_add(1, std::memory_order_relaxed);
  std::string cause = link_.loss();
  // A connection that was lost early and has moved neither stream does not count as a success: the earlier attempts
  // continue. Only the next connection reports what the last one has carried to the server.
  if (!attempts_ || link_.received() != received_before_ || server_has_received_ || attempts_->has_lasted(Clock::now()))
    attempts_.emplace(graces_of_loss(), cause, [this](const std::string& line) { notify(line); });
  else if (!await_next_attempt(cause)) return;
  received_before_ = link_.received();
  Reconnection& attempts = *attempts_;
  while (!ended() && !closing_.load(std::memory_order_relaxed)) {
    auto got = reconnector_->reconnect(link_.received());
    if (ended()) return;
    if (got) {
      watch_connection(*got->transport);
      server_has_received_ = got->server_received != std::exchange(server_received_before_, got->server_received);
      if (!link_.attach(std::move(got->transport), got->server_received))
        return end(CUDA_ERROR_DEVICE_UNAVAILABLE,
                   "the server claims to have received what was not sent; the session is over", true);
      stats_.detached_ns.fetch_add(uint64_t(attempts.succeeded(Clock::now()).count()), std::memory_order_relaxed);
      return;
    }
    cause = std::move(got.error().cause);
    if (!got.error().again) return give_up_session(got.error().result, cause);
    if (!await_next_attempt(cause, got.error().result)) return;
  }
}

bool ConnectedSession::await_next_attempt(const std::string& cause, CUresult result) {
  const auto delay = attempts_->next_delay(Clock::now(), cause);
  if (delay.count() < 0) return give_up_session(result, cause), false;
  link_.wait(0, delay);
  return true;
}

void ConnectedSession::give_up_session(CUresult result, const std::string& cause) {
  end(result, fmt::format("the connection was lost, and the session does not go on: {}", cause), true);
}

}  // namespace gpuwire::client
