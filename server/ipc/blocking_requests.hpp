// Requests of a worker's threads, each of which waits for its own answer.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/ipc/answer_wait.hpp"
#include "server/ipc/channel.hpp"
#include "server/ipc/request_table.hpp"

namespace gpuwire::server::ipc {

inline constexpr size_t kBlockingRequestsMax = 4096;  // each is a thread that waits

// Any thread sends requests; the thread that reads the channel passes the answers on.
class BlockingRequests {
 public:
  // `channel` outlives it.
  explicit BlockingRequests(Channel& channel) : channel_(channel) {}

  // `make(number)` makes the message, once for each broker during the wait; nothing: it cannot be made. Waits until the
  // answer arrives, or a broker has not answered within `at_most`. The error gives the reason.
  template <class Make>
  tl::expected<Answer, std::string> ask(std::chrono::milliseconds at_most, Make&& make);

  // Passes on the broker's answer. Does not block.
  void on_message(Answer answer);
  // The broker has ended; another one is there, or none will come.
  void broker_away();
  void broker_back();

 private:
  using Pending = std::optional<Answer>*;

  Channel& channel_;
  // Locked before the channel's; released while a thread waits for an answer.
  Mutex mutex_;
  Condition changed_;
  AnswerWait wait_ GUARDED_BY(mutex_);
  RequestTable<Pending> pending_ GUARDED_BY(mutex_){kBlockingRequestsMax};
};

template <class Make>
tl::expected<Answer, std::string> BlockingRequests::ask(std::chrono::milliseconds at_most, Make&& make) {
  MutexLock lock(mutex_);
  std::optional<Answer> answer;
  auto number = pending_.open(&answer);
  if (!number) return tl::unexpected(std::string("too many threads wait for the broker"));
  bool said = true;
  auto log_wait = [&] {
    std::optional<Message> message = make(*number);
    return said = message && channel_.send(std::move(*message));
  };
  const bool answered = wait_.wait(lock.native(), changed_, at_most, log_wait, [&] { return answer.has_value(); });
  pending_.close(*number);
  if (answered) return std::move(*answer);
  return tl::unexpected(said ? "the broker has not answered in time" : std::string("the broker cannot be asked"));
}

}  // namespace gpuwire::server::ipc
