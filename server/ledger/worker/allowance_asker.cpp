#include "server/ledger/worker/allowance_asker.hpp"

#include <chrono>

#include <fmt/format.h>

#include "server/ipc/allowance_messages.hpp"

namespace gpuwire::server {

bool AllowanceAsker::ask(uint32_t column, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  uint64_t question = ++last_;
  std::optional<bool>& answer = questions_[question];
  bool answered = wait_.wait(
      lock, answered_, std::chrono::milliseconds(kAllowanceAnswerMs),
      [&] { return send_ipc_message(message_, memory_wanted(column, question, bytes)); },
      [&] { return answer.has_value(); });
  if (!answered) {
    IpcMessage note;
    note.kind = IpcMessageKind::note;
    note.text = fmt::format("no answer to a question about memory within {} ms", kAllowanceAnswerMs);
    send_ipc_message(message_, note);
  }
  bool yes = answer.value_or(false);
  questions_.erase(question);
  return yes;
}

void AllowanceAsker::broker_away() {
  {
    std::lock_guard lock(mutex_);
    wait_.away();
  }
  answered_.notify_all();
}

void AllowanceAsker::broker_back() {
  {
    std::lock_guard lock(mutex_);
    wait_.back();
  }
  answered_.notify_all();
}

void AllowanceAsker::heard(const IpcMessage& answer) {
  {
    std::lock_guard lock(mutex_);
    auto found = questions_.find(question_number(answer));
    if (found == questions_.end()) return;  // too late: nobody waits any more
    found->second = answer.number == 1;
  }
  answered_.notify_all();
}

}  // namespace gpuwire::server
