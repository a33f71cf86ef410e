#include "server/ledger/allowance_asker.hpp"

#include <chrono>

#include <fmt/format.h>

#include "server/ledger/allowance_messages.hpp"

namespace gpuwire::server {

bool AllowanceAsker::ask(uint32_t column, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  uint64_t question = ++last_;
  std::optional<bool>& answer = questions_[question];
  bool yes = false;
  if (send_handoff(handoff_, memory_wanted(column, question, bytes))) {
    bool answered = answered_.wait_for(lock, std::chrono::milliseconds(kAllowanceAnswerMs), [&] { return answer.has_value(); });
    if (!answered) {
      Handoff note;
      note.kind = HandoffKind::note;
      note.text = fmt::format("no answer to a question about memory within {} ms", kAllowanceAnswerMs);
      send_handoff(handoff_, note);
    }
    yes = answer.value_or(false);
  }
  questions_.erase(question);
  return yes;
}

void AllowanceAsker::heard(const Handoff& answer) {
  {
    std::lock_guard lock(mutex_);
    auto found = questions_.find(question_number(answer));
    if (found == questions_.end()) return;  // too late: nobody waits any more
    found->second = answer.number == 1;
  }
  answered_.notify_all();
}

}  // namespace gpuwire::server
