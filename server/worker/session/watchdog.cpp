#include "server/worker/session/watchdog.hpp"

#include <algorithm>
#include <cerrno>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {
namespace {

void signal(const OwnedDescriptor& event) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(event.get(), &one, sizeof one);
}

}  // namespace

Watchdog::Watchdog(ipc::Channel& broker, std::shared_ptr<transport::Transport> connection, Hooks hooks)
    : broker_(broker),
      hooks_(std::move(hooks)),
      connection_(std::move(connection)),
      changed_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      quit_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  signal(quit_);
  thread_.join();
}

void Watchdog::begin_grace() { signal(wake_); }

void Watchdog::broker_full() { signal(changed_); }

bool Watchdog::read_broker() {
  broker_.drain();
  std::optional<ipc::Message> said;
  switch (broker_.try_receive(said)) {
    case ipc::Channel::Received::none_yet: return false;
    case ipc::Channel::Received::nonsense:
    case ipc::Channel::Received::closed: hooks_.stop("the server has gone"); return true;
    case ipc::Channel::Received::message: break;
  }
  if (auto* stop = std::get_if<ipc::Stop>(&*said)) {
    hooks_.stop({std::move(stop->why), stop->kind});
    return true;
  }
  hooks_.on_message(std::move(*said));
  return false;
}

void Watchdog::outlive_connections(std::function<std::chrono::nanoseconds()> poll) {
  {
    MutexLock lock(mutex_);
    poll_ = std::move(poll);
    outlives_ = true;
  }
  signal(changed_);
}

void Watchdog::detached(uint32_t grace_ms) {
  {
    MutexLock lock(mutex_);
    deadline_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(grace_ms);
    connection_.reset();
  }
  signal(changed_);
}

void Watchdog::attached(std::shared_ptr<transport::Transport> connection) {
  {
    MutexLock lock(mutex_);
    deadline_.reset();
    connection_ = std::move(connection);
  }
  signal(changed_);
}

int Watchdog::time_left() {
  MutexLock lock(mutex_);
  if (!deadline_) return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - std::chrono::steady_clock::now());
  return int(std::max<int64_t>(left.count(), 0));
}

int Watchdog::poll() {
  {
    MutexLock lock(mutex_);
    if (!outlives_ || !poll_) return -1;
  }
  return int(std::chrono::ceil<std::chrono::milliseconds>(poll_()).count());
}

int Watchdog::poll_executor(bool connected) {
  if (!connected || !hooks_.poll_executor) return -1;
  const auto now = std::chrono::steady_clock::now();
  if (now >= executor_poll_) {
    hooks_.poll_executor();
    executor_poll_ = now + std::chrono::milliseconds(kExecutorPollMs);
  }
  return int(std::chrono::ceil<std::chrono::milliseconds>(executor_poll_ - now).count());
}

bool Watchdog::closed(const std::shared_ptr<transport::Transport>& connection) {
  {
    MutexLock lock(mutex_);
    if (outlives_ && connection_ == connection) connection_.reset();
    if (!outlives_) return hooks_.gone(), true;
  }
  hooks_.hung_up();
  return false;
}

void Watchdog::watch() {
  for (bool ending = false; !ending;) {
    int until_poll = poll();
    std::shared_ptr<transport::Transport> connection;
    {
      MutexLock lock(mutex_);
      connection = connection_;
    }
    // The socket is polled only for its end: data on it are for the executor and do not wake this thread.
    pollfd watched[5] = {{broker_.descriptor(), broker_.events(), 0},
                         {connection ? connection->descriptor() : -1, POLLRDHUP, 0},
                         {wake_.get(), POLLIN, 0},
                         {quit_.get(), POLLIN, 0},
                         {changed_.get(), POLLIN, 0}};
    const int waits[] = {time_left(), until_poll, poll_executor(connection != nullptr)};
    // The shortest of the waits that apply; without one, poll() has no time limit.
    int wait = -1;
    for (int one : waits)
      if (one >= 0 && (wait < 0 || one < wait)) wait = one;
    if (::poll(watched, 5, wait) < 0) {
      if (errno == EINTR) continue;
      ::_exit(kExitOverdue);
    }
    if (watched[3].revents) return;
    if (watched[4].revents) {
      uint64_t count = 0;
      [[maybe_unused]] ssize_t got = ::read(changed_.get(), &count, sizeof count);
    }
    if (watched[0].revents) ending = read_broker();
    if (watched[1].revents && closed(connection)) ending = true;
    if (watched[2].revents) ending = true;
    if (time_left() == 0) {
      hooks_.grace_over();
      ending = true;
    }
  }
  pollfd quit{quit_.get(), POLLIN, 0};
  int quitting;
  do quitting = ::poll(&quit, 1, int(kEndGraceMs));
  while (quitting < 0 && errno == EINTR);
  if (quitting == 0) ::_exit(kExitOverdue);
}

}  // namespace gpuwire::server
