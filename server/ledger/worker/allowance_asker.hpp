// The worker's side of raising allowances: asks the broker over the IPC message socket and waits for its answer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "server/ipc/answer_wait.hpp"
#include "server/ipc/ipc_message.hpp"
#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

// Longer than the broker lets a question wait (kMemoryShortage), and than a load delays a broker that has no core: a
// program would be told that memory is short.
inline constexpr uint32_t kAllowanceAnswerMs = 20'000;

class AllowanceAsker final : public AllowanceSource {
 public:
  // `ipc_message`: the broker's pair, which the watchdog reads.
  explicit AllowanceAsker(int message) : message_(message) {}

  bool ask(uint32_t column, uint64_t bytes) override;
  // What the broker has answered; the watchdog's thread. Does not block.
  void heard(const IpcMessage& answer);
  // There is no broker now; there is another one, or never will be. As heard().
  void broker_away();
  void broker_back();

 private:
  const int message_;
  std::mutex mutex_;  // a leaf; given up while an answer is awaited
  std::condition_variable answered_;
  AnswerWait wait_;
  uint64_t last_ = 0;
  std::map<uint64_t, std::optional<bool>> questions_;  // those that are waited for
};

}  // namespace gpuwire::server
