// The worker's side of what sessions share: asks the broker and waits for its answer.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "server/ipc/answer_wait.hpp"
#include "server/ipc/ipc_message.hpp"
#include "server/replay/memory/shares.hpp"

namespace gpuwire::server {

class BrokerShares final : public ShareExchange {
 public:
  // `ipc_message`: the broker's pair, which the watchdog reads.
  explicit BrokerShares(int message) : message_(message) {}

  bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) override;
  int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) override;
  void withdraw(const ShareToken& token) override;

  // What the broker has answered; the watchdog's thread. Does not block.
  void heard(IpcMessage answer);
  // There is no broker now; there is another one, or never will be. As heard().
  void broker_away();
  void broker_back();

 private:
  // Null: no answer within kShareAnswerMs of a broker's having been asked. One question at a time: the executor asks.
  std::optional<IpcMessage> ask(IpcMessage question);

  const int message_;
  std::mutex mutex_;
  std::condition_variable answered_;
  AnswerWait wait_;
  std::optional<ShareToken> asked_;
  std::optional<IpcMessage> answer_;
};

}  // namespace gpuwire::server
