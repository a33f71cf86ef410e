// The worker's side of what sessions share: asks the broker and waits for its answer.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "server/base/answer_wait.hpp"
#include "server/broker/handoff.hpp"
#include "server/replay/shares.hpp"

namespace gpuwire::server {

class BrokerShares final : public ShareExchange {
 public:
  // `handoff`: the broker's pair, which the warden reads.
  explicit BrokerShares(int handoff) : handoff_(handoff) {}

  bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) override;
  int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) override;
  void withdraw(const ShareToken& token) override;

  // What the broker has answered; the warden's thread. Does not block.
  void heard(Handoff answer);
  // There is no broker now; there is another one, or never will be. As heard().
  void broker_away();
  void broker_back();

 private:
  // Null: no answer within kShareAnswerMs of a broker's having been asked. One question at a time: the executor asks.
  std::optional<Handoff> ask(Handoff question);

  const int handoff_;
  std::mutex mutex_;
  std::condition_variable answered_;
  AnswerWait wait_;
  std::optional<ShareToken> asked_;
  std::optional<Handoff> answer_;
};

}  // namespace gpuwire::server
