#include "server/worker/session/broker_shares.hpp"

#include <chrono>

#include <fcntl.h>

#include "server/worker/limits.hpp"

namespace gpuwire::server {
namespace {

IpcMessage question(IpcMessageKind kind, const ShareToken& token, ShareKind share_kind, const std::string& tenant) {
  IpcMessage message;
  message.kind = kind;
  message.number = uint32_t(share_kind);
  message.id = token;
  message.text = tenant;
  return message;
}

}  // namespace

std::optional<IpcMessage> BrokerShares::ask(IpcMessage question) {
  std::unique_lock lock(mutex_);
  asked_ = question.id;
  answer_.reset();
  wait_.wait(
      lock, answered_, std::chrono::milliseconds(kShareAnswerMs), [&] { return send_ipc_message(message_, question); },
      [&] { return answer_.has_value(); });
  asked_.reset();
  return std::exchange(answer_, std::nullopt);
}

void BrokerShares::heard(IpcMessage answer) {
  if (answer.kind != IpcMessageKind::share_answer) return;
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
  IpcMessage share = question(IpcMessageKind::share, token, kind, tenant);
  share.socket.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!share.socket) return false;
  std::optional<IpcMessage> answer = ask(std::move(share));
  return answer && answer->number == 1;
}

int BrokerShares::claim(const ShareToken& token, ShareKind kind, const std::string& tenant) {
  std::optional<IpcMessage> answer = ask(question(IpcMessageKind::claim, token, kind, tenant));
  return answer && answer->number == 1 ? answer->socket.release() : -1;
}

void BrokerShares::withdraw(const ShareToken& token) {
  send_ipc_message(message_, question(IpcMessageKind::withdraw, token, ShareKind::memory,
                                      {}));  // what is not heard ends with the session
}

}  // namespace gpuwire::server
