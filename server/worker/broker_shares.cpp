#include "server/worker/broker_shares.hpp"

#include <chrono>

#include <fcntl.h>

#include "server/worker/limits.hpp"

namespace gpuwire::server {
namespace {

Handoff question(HandoffKind kind, const ShareToken& token, ShareKind share_kind, const std::string& tenant) {
  Handoff handoff;
  handoff.kind = kind;
  handoff.number = uint32_t(share_kind);
  handoff.id = token;
  handoff.text = tenant;
  return handoff;
}

}  // namespace

std::optional<Handoff> BrokerShares::ask(Handoff question) {
  std::unique_lock lock(mutex_);
  asked_ = question.id;
  answer_.reset();
  wait_.wait(lock, answered_, std::chrono::milliseconds(kShareAnswerMs), [&] { return send_handoff(handoff_, question); }, [&] { return answer_.has_value(); });
  asked_.reset();
  return std::exchange(answer_, std::nullopt);
}

void BrokerShares::heard(Handoff answer) {
  if (answer.kind != HandoffKind::share_answer) return;
  {
    std::lock_guard lock(mutex_);
    if (!asked_ || *asked_ != answer.id) return;  // too late: nobody waits any more
    answer_ = std::move(answer);
  }
  answered_.notify_one();
}

void BrokerShares::broker_away() {
  {
    std::lock_guard lock(mutex_);
    wait_.away();
  }
  answered_.notify_all();
}

void BrokerShares::broker_back() {
  {
    std::lock_guard lock(mutex_);
    wait_.back();
  }
  answered_.notify_all();
}

bool BrokerShares::publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) {
  Handoff share = question(HandoffKind::share, token, kind, tenant);
  share.socket.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!share.socket) return false;
  std::optional<Handoff> answer = ask(std::move(share));
  return answer && answer->number == 1;
}

int BrokerShares::claim(const ShareToken& token, ShareKind kind, const std::string& tenant) {
  std::optional<Handoff> answer = ask(question(HandoffKind::claim, token, kind, tenant));
  return answer && answer->number == 1 ? answer->socket.release() : -1;
}

void BrokerShares::withdraw(const ShareToken& token) {
  send_handoff(handoff_, question(HandoffKind::withdraw, token, ShareKind::memory, {}));  // what is not heard ends with the session
}

}  // namespace gpuwire::server
