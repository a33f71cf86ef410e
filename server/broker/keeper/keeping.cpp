#include "server/broker/keeper/keeping.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/transport/connecting.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/worker/spawn.hpp"

namespace gpuwire::server {
namespace {

constexpr const char *kLock = "lock", *kKey = "key", *kSocket = "keeper";

std::string failure(const std::filesystem::path& path) {
  return fmt::format("{}: {}", path.string(), std::strerror(errno));
}

// Retries for a moment: a process that was killed just now releases its lock within it.
bool lock(int descriptor) {
  constexpr uint32_t kStepMs = 10;
  for (uint32_t waited_ms = 0; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0; waited_ms += kStepMs) {
    if (waited_ms >= kKeeperLockMs) return false;
    ::poll(nullptr, 0, int(kStepMs));
  }
  return true;
}

std::string read_key(const std::filesystem::path& path) {
  OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::string key(ipc::kKeeperKeyBytes, '\0');
  if (!file || ::read(file.get(), key.data(), key.size()) != ssize_t(key.size())) return {};
  return key;
}

bool write_key(const std::filesystem::path& path, const std::string& key) {
  ::unlink(path.c_str());
  OwnedDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  return file && ::write(file.get(), key.data(), key.size()) == ssize_t(key.size());
}

OwnedDescriptor connect_to(const std::filesystem::path& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string& text = path.native();
  if (text.size() >= sizeof address.sun_path) return {};
  std::copy(text.begin(), text.end(), address.sun_path);
  OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket || transport::connect_through_signals(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                                    sizeof address) != 0)
    return {};
  return socket;
}

bool is_this_users(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == ::geteuid();
}

constexpr std::chrono::milliseconds kAnswer{kKeeperAnswerMs};

// Copies the entry with duplicated descriptors.
KeptEntry copy_of(const KeptEntry& entry) {
  KeptEntry copy{
      .session = entry.session, .awaited = entry.awaited, .name = entry.name, .text = entry.text, .descriptors = {}};
  for (const OwnedDescriptor& descriptor : entry.descriptors)
    copy.descriptors.emplace_back(descriptor ? ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0) : -1);
  return copy;
}

}  // namespace

tl::expected<std::unique_ptr<Keeping>, std::string> Keeping::open(boost::asio::io_context& io,
                                                                  KeepingSettings settings) {
  std::unique_ptr<Keeping> keeping(new Keeping(io, std::move(settings)));
  if (auto taken = keeping->take_folder(); !taken) return tl::unexpected(taken.error());
  if (keeping->find_keeper()) return keeping;
  if (auto started = keeping->start_keeper(true); !started) return tl::unexpected(started.error());
  return keeping;
}

Keeping::Keeping(boost::asio::io_context& io, KeepingSettings settings)
    : io_(io), settings_(std::move(settings)), retry_(io) {}

// A keeper without sessions ends with its broker. The broker waits for it, so that no process is left when the server
// has exited.
Keeping::~Keeping() {
  if (channel_) channel_->flush(kAnswer);
  channel_.reset();
  constexpr uint32_t kStepMs = 2;
  for (uint32_t waited_ms = 0; child_ >= 0 && lasting_.empty() && waited_ms < kLoginExitMs; waited_ms += kStepMs) {
    if (::waitpid(child_, nullptr, WNOHANG) != 0) break;
    ::poll(nullptr, 0, int(kStepMs));
  }
  if (lock_ && lasting_.empty()) clear_folder();
}

// The lock is removed last: a process that waits for it notices that the file is gone.
void Keeping::clear_folder() {
  for (const char* name : {kKey, kSocket, kLock}) ::unlink((settings_.directory / name).c_str());
  if (settings_.temporary) ::rmdir(settings_.directory.c_str());
}

tl::expected<void, std::string> Keeping::take_folder() {
  const std::filesystem::path& folder = settings_.directory;
  if ((folder / kSocket).native().size() >= sizeof(sockaddr_un::sun_path))
    return tl::unexpected(fmt::format("{} is too long for the path of a socket", folder.string()));
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return tl::unexpected(failure(folder));
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0) return tl::unexpected(failure(folder));
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != ::geteuid() || (facts.st_mode & 077))
    return tl::unexpected(
        fmt::format("{} has to be a folder that only this user can look into (chmod 0700)", folder.string()));
  return take_lock();
}

tl::expected<void, std::string> Keeping::take_lock() {
  const std::filesystem::path path = settings_.directory / kLock;
  OwnedDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file && errno == ENOENT) return take_folder();  // a server that ended has just removed it
  if (!file) return tl::unexpected(failure(path));
  if (!lock(file.get())) {
    std::string holder;
    std::ifstream(path) >> holder;
    return tl::unexpected(fmt::format("{} is in use by another server (process {}); two need a runtime_directory each",
                                      settings_.directory.string(), holder));
  }
  struct stat locked {
  }, there{};
  bool same = ::fstat(file.get(), &locked) == 0 && ::lstat(path.c_str(), &there) == 0 && locked.st_ino == there.st_ino;
  if (!same) return take_folder();
  lock_ = std::move(file);
  std::string process = fmt::format("{}\n", ::getpid());
  if (::ftruncate(lock_.get(), 0) != 0 ||
      ::write(lock_.get(), process.data(), process.size()) != ssize_t(process.size()))
    return tl::unexpected(failure(path));
  return {};
}

void Keeping::forget_entries() {
  found_.clear();
  entries_.clear();
  lasting_.clear();
}

// Blocks until the keeper has sent all entries; then the event loop listens. Returns the error; empty: all have
// arrived.
std::string Keeping::take_entries(int keeper) {
  forget_entries();
  ipc::Channel channel(OwnedDescriptor(::fcntl(keeper, F_DUPFD_CLOEXEC, 0)), ipc::Speaker::keeper,
                       ipc::kKeeperWaitingMax);
  channel.send(ipc::Hello{ipc::kKeeperVersion, key_});
  channel.send(ipc::Give{});
  while (auto message = channel.await(kAnswer)) {
    if (std::holds_alternative<ipc::Given>(*message)) return {};
    auto* entry = std::get_if<ipc::Entry>(&*message);
    if (!entry) continue;
    remember(entry->entry);
    found_.push_back(std::move(entry->entry));
  }
  return channel.fault().empty() ? "it hung up, or gave no answer" : channel.fault();
}

// A failure of this process, such as lack of memory, must not lose the sessions: the broker asks an existing keeper
// again. A keeper that still does not answer ends its sessions when its grace is over; nothing else has their
// descriptors.
bool Keeping::find_keeper() {
  key_ = read_key(settings_.directory / kKey);
  std::string why;
  for (unsigned tried = 0; tried < kKeeperTriesMax; ++tried) {
    OwnedDescriptor keeper = connect_to(settings_.directory / kSocket);
    if (!keeper || !is_this_users(keeper.get())) return false;
    why = take_entries(keeper.get());
    if (why.empty()) {
      listen_to(std::move(keeper));
      return true;
    }
  }
  spdlog::error("what the keeper in {} has cannot be learnt ({}): sessions of an earlier server end",
                settings_.directory.string(), why);
  forget_entries();
  return false;
}

tl::expected<void, std::string> Keeping::start_keeper(bool await) {
  key_.assign(ipc::kKeeperKeyBytes, '\0');
  if (::getrandom(key_.data(), key_.size(), 0) != ssize_t(key_.size()) || !write_key(settings_.directory / kKey, key_))
    return tl::unexpected(failure(settings_.directory / kKey));
  OwnedDescriptor ours, theirs;
  if (!ipc::open_pair(ours, theirs)) return tl::unexpected(std::string("no socket pair for the keeper"));
  // The keeper outlives this process, and hears from brokers only: it logs by itself.
  auto child = spawn_child(settings_.program, {"--socket", (settings_.directory / kSocket).string()}, theirs.get(), -1);
  if (!child) return tl::unexpected(child.error());
  child_ = *child;
  {
    ipc::Channel channel(OwnedDescriptor(::fcntl(ours.get(), F_DUPFD_CLOEXEC, 0)), ipc::Speaker::keeper,
                         ipc::kKeeperWaitingMax);
    channel.send(ipc::Hello{ipc::kKeeperVersion, key_});
    // The keeper answers once it listens.
    if (await && (!channel.send(ipc::Give{}) || !channel.await(kAnswer)))
      return tl::unexpected(fmt::format("{} does not answer", settings_.program));
  }
  listen_to(std::move(ours));
  return {};
}

void Keeping::listen_to(OwnedDescriptor keeper) {
  channel_ = std::make_unique<ipc::EventChannel>(
      io_, std::move(keeper), ipc::Speaker::keeper, ipc::kKeeperWaitingMax, ipc::EventChannel::Trust::full,
      ipc::EventChannel::Events{.on_message = [](ipc::Message) {},
                                .over = [this](const std::string&) { keeper_gone(); }});
  set_grace(settings_.grace);
}

// Between the keeper's end and the next one's start, sessions would end with this broker.
void Keeping::keeper_gone() {
  channel_.reset();
  if (child_ >= 0) ::waitpid(std::exchange(child_, -1), nullptr, WNOHANG);
  spdlog::error("the keeper has ended: another one is started, and gets what sessions need to outlive this process");
  start_again_later();
}

void Keeping::start_again_later() {
  uint32_t delay_ms = std::min(kRestartDelayMinMs << std::min(failures_++, 16u), kRestartDelayMaxMs);
  retry_.expires_after(std::chrono::milliseconds(delay_ms));
  retry_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (error) return;
    if (auto started = start_keeper(false); !started) {
      spdlog::error("{}", started.error());
      return start_again_later();
    }
    for (const auto& [name, entry] : entries_) notify(ipc::Put{copy_of(entry)});
    spdlog::info("another keeper has what {} sessions and other entries need", entries_.size());
  }));
}

// --- entries
// --------------------------------------------------------------------------------------------------------------------

void Keeping::notify(ipc::Message message) {
  if (channel_ && !channel_->send(std::move(message)) && channel_->waiting() >= ipc::kKeeperWaitingMax) keeper_gone();
}

void Keeping::set_grace(std::chrono::milliseconds grace) {
  settings_.grace = grace;
  notify(ipc::Grace{uint32_t(std::min<int64_t>(grace.count(), UINT32_MAX))});
}

void Keeping::remember(const KeptEntry& entry) {
  if (entry.session || entry.awaited) lasting_.insert(entry.name);
  else lasting_.erase(entry.name);
  entries_.insert_or_assign(entry.name, copy_of(entry));
}

void Keeping::put(KeptEntry entry) {
  remember(entry);
  notify(ipc::Put{std::move(entry)});
}

void Keeping::note(const std::string& name, std::string text) {
  if (auto found = entries_.find(name); found != entries_.end()) found->second.text = text;
  notify(ipc::Rewrite{name, std::move(text)});
}

void Keeping::remove(const std::string& name) {
  entries_.erase(name);
  lasting_.erase(name);
  notify(ipc::Remove{name});
}

void Keeping::remove_all(bool (*is_one)(const std::string& name)) {
  std::vector<std::string> names;
  std::ranges::copy_if(lasting_, std::back_inserter(names), is_one);
  for (const std::string& name : names) remove(name);
}

}  // namespace gpuwire::server
