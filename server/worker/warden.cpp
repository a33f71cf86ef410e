#include "server/worker/warden.hpp"

#include <cerrno>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/worker/limits.hpp"

namespace gpuwire::server {
namespace {

void signal(const OwnedDescriptor& event) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(event.get(), &one, sizeof one);
}

}  // namespace

Warden::Warden(int handoff, int socket, Hooks hooks)
    : handoff_(handoff), socket_(socket), hooks_(std::move(hooks)), wake_(::eventfd(0, EFD_CLOEXEC)), quit_(::eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] { watch(); });
}

Warden::~Warden() {
  signal(quit_);
  thread_.join();
}

void Warden::begin_grace() { signal(wake_); }

bool Warden::hear_broker() {
  Handoff said;
  switch (receive_handoff(handoff_, false, said)) {
    case HandoffReceived::none_yet: return false;
    case HandoffReceived::closed: hooks_.stop("the server has gone"); return true;
    case HandoffReceived::message: break;
  }
  if (said.kind != HandoffKind::stop) {
    hooks_.hear(std::move(said));
    return false;
  }
  hooks_.stop(said.text);
  return true;
}

void Warden::watch() {
  for (bool ending = false; !ending;) {
    // The socket is asked for its end alone: data on it are the executor's and wake nobody here.
    pollfd watched[4] = {{handoff_, POLLIN, 0}, {socket_, POLLRDHUP, 0}, {wake_.get(), POLLIN, 0}, {quit_.get(), POLLIN, 0}};
    if (::poll(watched, 4, -1) < 0) {
      if (errno == EINTR) continue;
      ::_exit(kExitOverdue);
    }
    if (watched[3].revents) return;
    if (watched[0].revents) ending = hear_broker();
    if (watched[1].revents) hooks_.gone();
    if (watched[1].revents || watched[2].revents) ending = true;
  }
  pollfd quit{quit_.get(), POLLIN, 0};
  int quitting;
  do quitting = ::poll(&quit, 1, int(kEndGraceMs));
  while (quitting < 0 && errno == EINTR);
  if (quitting == 0) ::_exit(kExitOverdue);
}

}  // namespace gpuwire::server
