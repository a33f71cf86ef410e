#include "client_stub/driver/state/memory/shares.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "client/session_sends.hpp"

namespace gpuwire::client {
namespace {

// The message in the socket.
struct Message {
  char magic[16];
  ShareToken token;
};
constexpr char kMagic[16] = {'G', 'P', 'U', 'W', 'I', 'R', 'E', ' ', 's', 'h', 'a', 'r', 'e', ' ', '1', '\n'};

}  // namespace

int Shares::give_out(const ShareToken& token, bool close_on_exec) noexcept {
  MutexLock lock(mutex_);
  if (shares_.size() >= kSharesMax) return -1;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  Message message{};
  std::memcpy(message.magic, kMagic, sizeof kMagic);
  message.token = token;
  bool written = ::send(ends[0], &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof message);
  if (written && ::fcntl(ends[1], F_SETFD, close_on_exec ? FD_CLOEXEC : 0) == 0) {
    try {
      shares_.push_back({transport::OwnDescriptor(ends[0]), token});
      return ends[1];
    } catch (...) {  // no memory
    }
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return -1;
}

std::optional<ShareToken> Shares::token_of(int descriptor) noexcept {
  Message message{};
  // The message stays in the socket for further readers. A descriptor that is no socket, or an empty socket, is not a
  // share.
  if (::recv(descriptor, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT) != ssize_t(sizeof message))
    return std::nullopt;
  if (std::memcmp(message.magic, kMagic, sizeof kMagic) != 0) return std::nullopt;
  return message.token;
}

void Shares::withdraw(const Caller& caller, const ShareToken& token) noexcept {
  send::post_share_withdraw(*caller.session, caller.context, {.token = token});
}

void Shares::sweep(const Caller& caller) noexcept {
  ShareToken ended[kSharesMax];
  size_t ended_count = 0;
  {
    MutexLock lock(mutex_);
    if (shares_.empty()) return;
    pollfd watched[kSharesMax];
    for (size_t i = 0; i < shares_.size(); ++i)
      watched[i] = {shares_[i].own_end.is_ours() ? shares_[i].own_end.get() : -1, 0, 0};
    if (::poll(watched, nfds_t(shares_.size()), 0) <= 0) return;
    size_t kept = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (watched[i].fd >= 0 && (watched[i].revents & (POLLHUP | POLLERR))) {
        shares_[i].own_end.close();
        ended[ended_count++] = shares_[i].token;
      } else {
        if (kept != i) shares_[kept] = std::move(shares_[i]);
        ++kept;
      }
    }
    shares_.resize(kept);
  }
  for (size_t i = 0; i < ended_count; ++i) withdraw(caller, ended[i]);
}

}  // namespace gpuwire::client
