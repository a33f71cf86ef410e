#include "server/worker/connection/resumption.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "protocol/transport/stream.hpp"
#include "protocol/wire/limits.hpp"
#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {

namespace {
constexpr std::chrono::milliseconds kTimeout{wire::kHandshakeTimeoutMs};
}  // namespace

Resumption::~Resumption() {
  for (Attempt& attempt : attempts_) attempt.thread.join();
}

void Resumption::arrive(OwnedDescriptor socket, std::string tls_key) {
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    if (!attempt->over.load(std::memory_order_relaxed)) {
      ++attempt;
      continue;
    }
    attempt->thread.join();
    attempt = attempts_.erase(attempt);
  }
  if (attempts_.size() >= kResumesMax)
    return parts_.refused(fmt::format("{} other attempts are under way", attempts_.size()));
  Attempt& fresh = attempts_.emplace_back();
  fresh.thread = std::thread([this, &fresh, socket = std::move(socket), tls_key = std::move(tls_key)]() mutable {
    attempt(std::move(socket), std::move(tls_key));
    fresh.over.store(true, std::memory_order_relaxed);
  });
}

void Resumption::attempt(OwnedDescriptor socket, std::string tls_key) {
  auto connection = parts_.open(std::move(socket), std::move(tls_key));
  if (!connection) return parts_.refused(connection.error());
  auto request = resume::receive_request(**connection, parts_.id, parts_.secret, kTimeout);
  if (!request) return parts_.refused(request.error());
  request->lane ? join(std::move(*connection), *request) : carry_on(std::move(*connection), *request);
}

std::string Resumption::why_no_lane(const resume::Request& request) const {
  const resume::Lane& lane = *request.lane;
  if (request.attempt != last_attempt_) return "the connection that the lane is for is not the session's any more";
  if (lane.count > parts_.lanes_max())
    return fmt::format("{} lanes where {} are allowed", lane.count, parts_.lanes_max());
  if (lane.number >= lane.count) return fmt::format("lane {} of {}", lane.number, lane.count);
  if (lane.set < lane_set_ || (lane.set == lane_set_ && lanes_.empty())) return "lanes of an older set";
  if (lane.set == lane_set_ && (lanes_.size() != lane.count || lanes_[lane.number]))
    return "a lane that there is already";
  return {};
}

// All lanes of a set start together, when the last one is accepted.
void Resumption::join(std::unique_ptr<transport::Transport> connection, const resume::Request& request) {
  MutexLock replacing(replacing_);
  if (std::string why = why_no_lane(request); !why.empty()) {
    resume::refuse(*connection, why, kTimeout);
    return parts_.refused(std::move(why));
  }
  const resume::Lane& lane = *request.lane;
  if (lane.set != lane_set_) {
    lanes_.clear();
    lanes_.resize(lane.count);
    lane_set_ = lane.set;
  }
  transport::notice_lost_peer(connection->descriptor(), transport::LostPeer::replaceable);
  transport::Transport& joined = *(lanes_[lane.number] = std::move(connection));
  std::shared_ptr<link::LaneSet> all;
  if (std::all_of(lanes_.begin(), lanes_.end(), [](const auto& one) { return one != nullptr; })) {
    all = std::make_shared<link::LaneSet>(std::exchange(lanes_, {}), lane_set_, false);
    auto beside = parts_.link.transport();
    if (!parts_.link.add_lanes(*beside, all)) return;  // this closes the lanes
  }
  resume::accept(joined, 0, kTimeout);
}

void Resumption::carry_on(std::unique_ptr<transport::Transport> connection, const resume::Request& request) {
  MutexLock replacing(replacing_);
  if (request.attempt <= last_attempt_) {
    resume::refuse(*connection, "a newer attempt has been made", kTimeout);
    return parts_.refused(fmt::format("attempt {} comes after attempt {}", request.attempt, last_attempt_));
  }
  last_attempt_ = request.attempt;
  lanes_.clear();
  uint64_t received = parts_.link.detach();
  if (!resume::accept(*connection, received, kTimeout)) return;
  parts_.proved(*connection, request);
  if (!parts_.link.attach(std::move(connection), request.received))
    return parts_.fault("the client claims to have received what was not sent");
  uint64_t appended = 0;
  {
    std::lock_guard lock(parts_.link);
    appended = parts_.link.appended();
  }
  parts_.link.push(appended, std::chrono::milliseconds(kPeerStallMs));
}

}  // namespace gpuwire::server
