#include "server/worker/connection/resumption.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "protocol/wire/limits.hpp"
#include "server/worker/limits.hpp"

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
  if (attempts_.size() >= kResumesMax) return parts_.refused(fmt::format("{} other attempts are under way", attempts_.size()));
  Attempt& fresh = attempts_.emplace_back();
  fresh.thread = std::thread([this, &fresh, socket = std::move(socket), tls_key = std::move(tls_key)]() mutable {
    attempt(std::move(socket), std::move(tls_key));
    fresh.over.store(true, std::memory_order_relaxed);
  });
}

void Resumption::attempt(OwnedDescriptor socket, std::string tls_key) {
  auto connection = parts_.open(std::move(socket), std::move(tls_key));
  if (!connection) return parts_.refused(connection.error());
  auto heard = resume::hear(**connection, parts_.id, parts_.secret, kTimeout);
  if (!heard) return parts_.refused(heard.error());
  carry_on(std::move(*connection), *heard);
}

void Resumption::carry_on(std::unique_ptr<transport::Transport> connection, const resume::Heard& heard) {
  std::lock_guard replacing(replacing_);
  if (heard.attempt <= last_attempt_) {
    resume::refuse(*connection, "a newer attempt has been made", kTimeout);
    return parts_.refused(fmt::format("attempt {} comes after attempt {}", heard.attempt, last_attempt_));
  }
  last_attempt_ = heard.attempt;
  uint64_t received = parts_.link.detach();
  if (!resume::accept(*connection, received, kTimeout)) return;
  parts_.proved(*connection, heard);
  if (!parts_.link.attach(std::move(connection), heard.received)) return parts_.fault("the client claims to have received what was not sent");
  uint64_t appended = 0;
  {
    std::lock_guard lock(parts_.link);
    appended = parts_.link.appended();
  }
  parts_.link.push(appended, std::chrono::milliseconds(kPeerStallMs));
}

}  // namespace gpuwire::server
