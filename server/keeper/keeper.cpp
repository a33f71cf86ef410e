#include "server/keeper/keeper.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/gate/page/futex.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {
namespace {

constexpr int kWaitingBrokersMax = 4;
constexpr int kNotifyMs = 5000;  // for a broker to read its answers

// Compares every byte, so that the time reveals nothing about the correct part of a guess.
bool same(const std::string& a, const std::string& b) {
  uint8_t differences = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) differences = uint8_t(differences | uint8_t(a[i] ^ b[i]));
  return a.size() == b.size() && differences == 0;
}

bool readable(int descriptor) {
  pollfd watched{descriptor, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

int descriptor_of(const KeptEntry& entry, KeptDescriptor which) {
  return size_t(which) < entry.descriptors.size() ? entry.descriptors[size_t(which)].get() : -1;
}

}  // namespace

Keeper::Keeper(std::filesystem::path socket, OwnedDescriptor broker) : path_(std::move(socket)) {
  broker_.emplace(std::move(broker), ipc::Speaker::broker, ipc::kKeeperWaitingMax);
}

// Another keeper may already use this path.
Keeper::~Keeper() {
  struct stat facts {};
  if (path_inode_ && ::lstat(path_.c_str(), &facts) == 0 && facts.st_ino == path_inode_) ::unlink(path_.c_str());
}

bool Keeper::listen() {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string& path = path_.native();
  if (path.size() >= sizeof address.sun_path) return false;
  std::copy(path.begin(), path.end(), address.sun_path);
  listening_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ::unlink(path.c_str());  // of a process that was killed: the broker holds the folder's lock
  struct stat facts {};
  if (::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listening_.get(), kWaitingBrokersMax) != 0)
    return false;
  if (::lstat(path.c_str(), &facts) == 0) path_inode_ = facts.st_ino;
  return true;
}

void Keeper::run() {
  if (!listen()) return;
  while (turn()) {}
}

int Keeper::time_left() const {
  if (!gone_since_) return -1;
  auto until = *gone_since_ + (gates_open_ ? grace_ : std::min<std::chrono::milliseconds>(kGatesStay, grace_));
  auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return int(std::clamp<int64_t>(left, 0, INT32_MAX));
}

bool Keeper::turn() {
  auto watch = [](const std::optional<ipc::Channel>& channel) {
    return channel ? pollfd{channel->descriptor(), channel->events(), 0} : pollfd{-1, 0, 0};
  };
  pollfd watched[3] = {{listening_.get(), POLLIN, 0}, watch(broker_), watch(pending_)};
  if (::poll(watched, 3, time_left()) < 0 && errno != EINTR) return false;
  if (watched[1].revents) receive();
  if (watched[2].revents) let_in();
  if (watched[0].revents) meet();
  if (!gone_since_) return true;
  if (Clock::now() >= *gone_since_ + grace_) return false;
  if (!gates_open_ && Clock::now() >= *gone_since_ + kGatesStay) open_gates();
  return true;
}

// --- brokers
// --------------------------------------------------------------------------------------------------------------------

// A silent connection is dropped for a new one.
void Keeper::meet() {
  OwnedDescriptor connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pending_.reset();
  if (connection) pending_.emplace(std::move(connection), ipc::Speaker::broker, ipc::kKeeperWaitingMax);
}

void Keeper::let_in() {
  std::optional<ipc::Message> message;
  if (pending_->try_receive(message) == ipc::Channel::Received::none_yet) return;
  auto* hello = message ? std::get_if<ipc::Hello>(&*message) : nullptr;
  bool known = hello && hello->version == ipc::kKeeperVersion && !key_.empty() && same(hello->key, key_);
  if (!known) return pending_.reset();
  // The holder of the key holds the folder's lock, so the previous broker is dead, even if its end was not detected
  // yet.
  if (broker_) broker_gone();
  OwnedDescriptor connection(::fcntl(pending_->descriptor(), F_DUPFD_CLOEXEC, 0));
  pending_.reset();
  broker_.emplace(std::move(connection), ipc::Speaker::broker, ipc::kKeeperWaitingMax);
  // The new broker needs seconds until it knows its devices and schedules turns again.
  if (!gates_open_) open_gates();
  gone_since_.reset();
}

void Keeper::receive() {
  broker_->drain();
  for (std::optional<ipc::Message> message;;) {
    switch (broker_->try_receive(message)) {
      case ipc::Channel::Received::none_yet: return;
      case ipc::Channel::Received::closed:
      case ipc::Channel::Received::nonsense: return broker_gone();
      case ipc::Channel::Received::message: answer(std::move(*message));
    }
    if (!broker_) return;
  }
}

void Keeper::answer(ipc::Message message) {
  std::visit(ipc::Match{[&](ipc::Hello& hello) {
                          if (key_.empty()) key_ = std::move(hello.key);
                        },
                        [&](ipc::Grace& grace) { grace_ = std::chrono::milliseconds(grace.ms); },
                        [&](ipc::Put& put) {
                          const std::string name = put.entry.name;
                          entries_[name] = std::move(put.entry);
                        },
                        [&](ipc::Rewrite& rewrite) {
                          if (auto found = entries_.find(rewrite.name); found != entries_.end())
                            found->second.text = std::move(rewrite.text);
                        },
                        [&](ipc::Remove& remove) { entries_.erase(remove.name); },
                        [&](ipc::Give&) {
                          if (!give_all()) broker_gone();
                        },
                        [](auto&) {}},
             message);
}

bool Keeper::give_all() {
  for (const auto& [name, kept] : entries_) {
    KeptEntry copy{
        .session = kept.session, .awaited = kept.awaited, .name = kept.name, .text = kept.text, .descriptors = {}};
    for (const OwnedDescriptor& descriptor : kept.descriptors)
      copy.descriptors.emplace_back(descriptor ? ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0) : -1);
    if (!notify(ipc::Entry{std::move(copy)})) return false;
  }
  return notify(ipc::Given{uint32_t(entries_.size())});
}

// The kernel limits the descriptors in flight, so the broker reads the entries one after the other.
bool Keeper::notify(ipc::Message message) {
  while (!broker_->send(std::move(message))) {
    pollfd watched{broker_->descriptor(), POLLOUT, 0};
    if (::poll(&watched, 1, kNotifyMs) != 1 || (watched.revents & (POLLERR | POLLHUP))) return false;
  }
  return broker_->flush(std::chrono::milliseconds(kNotifyMs));
}

// --- without one
// --------------------------------------------------------------------------------------------------------------------

bool Keeper::anything_awaits() const {
  return std::ranges::any_of(entries_, [](const auto& one) {
    return one.second.awaited || (one.second.session && !readable(descriptor_of(one.second, KeptDescriptor::process)));
  });
}

void Keeper::broker_gone() {
  broker_.reset();
  gone_since_ = Clock::now();
  gates_open_ = false;
  // Without a session or another awaited object, no broker needs to return.
  if (!anything_awaits()) grace_ = {};
  for (const auto& [name, entry] : entries_) {
    const int worker = entry.session ? descriptor_of(entry, KeptDescriptor::worker) : -1;
    if (worker < 0) continue;
    // Uses a copy of the broker's end, which stays for the next broker. If a worker cannot be notified, its requests
    // time out earlier.
    ipc::Channel to_worker(OwnedDescriptor(::fcntl(worker, F_DUPFD_CLOEXEC, 0)), ipc::Speaker::worker, 0);
    to_worker.send(ipc::Unattended{});
  }
}

void Keeper::open_gates() {
  gates_open_ = true;
  for (const auto& [name, entry] : entries_) {
    if (!entry.session) continue;
    auto page = SharedPage<SessionPage>::map(
        OwnedDescriptor(::fcntl(descriptor_of(entry, KeptDescriptor::session_page), F_DUPFD_CLOEXEC, 0)));
    if (!page) continue;  // it has none, or its worker has overwritten it, which affects only that session
    (*page)->gate.store(0, std::memory_order_seq_cst);
    (*page)->copy_bytes_per_ms.store(0, std::memory_order_relaxed);
    (*page)->attention.fetch_add(1, std::memory_order_seq_cst);
    futex_wake((*page)->gate);
    futex_wake((*page)->attention);
  }
}

}  // namespace gpuwire::server
