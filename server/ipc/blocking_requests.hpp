// Requests of a worker's threads, each of which waits for its own answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/threads/mutex.hpp"
#include "server/ipc/answer_wait.hpp"
#include "server/ipc/channel.hpp"
#include "server/ipc/request_table.hpp"

namespace gpuwire::server::ipc {

inline constexpr size_t kBlockingRequestsMax = 4096;  // each is a thread that waits

// Any thread asks; the thread that reads the channel passes the answers on.
class BlockingRequests {
 public:
  // `channel` outlives it.
  explicit BlockingRequests(Channel& channel) : channel_(channel) {}

  // `make(number)` gives the message, once for each broker that there is meanwhile; nothing: it cannot be made. Waits
  // until the answer is there, or a broker has had `at_most` for it. The error says why there is none.
  template <class Make>
  tl::expected<Answer, std::string> ask(std::chrono::milliseconds at_most, Make&& make);

  // The broker's answer. Does not block.
  void on_message(Answer answer);
  // There is no broker now; there is another one, or never will be.
  void broker_away();
  void broker_back();

 private:
  using Pending = std::optional<Answer>*;

  Channel& channel_;
  Mutex mutex_;  // before the channel's; given up while an answer is awaited
  std::condition_variable changed_;
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
