#include "server/broker/connection/identity_watch.hpp"

#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "server/identity/identity_directory.hpp"

namespace gpuwire::server {
namespace {

// In the order of ipc::Identity.
constexpr std::string_view kFiles[] = {kAuthorityCertificateFile, kServerCertificateFile, kServerKeyFile,
                                       kRegisterFile};

}  // namespace

IdentityWatch::IdentityWatch(boost::asio::io_context& io, std::filesystem::path directory,
                             std::function<void()> changed)
    : directory_(std::move(directory)), changed_(std::move(changed)), changes_(io) {}

tl::expected<void, std::string> IdentityWatch::start() {
  // Watching begins before reading: a change between the two is found.
  OwnedDescriptor changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (changes && ::inotify_add_watch(changes.get(), directory_.c_str(),
                                     IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE | IN_ATTRIB) >= 0) {
    changes_.assign(changes.release());
    listen();
  }
  if (auto opened = open_files(); !opened) return tl::unexpected(opened.error());
  return read();
}

tl::expected<void, std::string> IdentityWatch::read() {
  Stamps now = stamps();
  auto credentials = read_register(directory_);
  if (!credentials) return tl::unexpected(credentials.error());
  credentials_ = std::move(*credentials);
  read_ = now;
  return {};
}

void IdentityWatch::refresh() {
  Stamps now = stamps();
  if (now == read_) return;
  read_ = now;
  if (auto done = read(); !done) spdlog::error("{}; what was read before stays in force", done.error());
  const std::function<void()> changed = changed_;  // a copy: the call may destroy the watch
  changed();
}

IdentityWatch::Stamps IdentityWatch::stamps() const {
  Stamps stamps;
  for (size_t i = 0; i < stamps.size(); ++i) {
    struct stat facts {};
    if (::stat((directory_ / kFiles[i]).c_str(), &facts) != 0) continue;
    stamps[i] = {facts.st_dev, facts.st_ino, int64_t(facts.st_ctim.tv_sec) * 1'000'000'000 + facts.st_ctim.tv_nsec};
  }
  return stamps;
}

tl::expected<ipc::Identity, std::string> IdentityWatch::open_files() const {
  ipc::Identity files;
  OwnedDescriptor* places[] = {&files.authority, &files.server_certificate, &files.server_key, &files.credentials};
  for (size_t i = 0; i < std::size(kFiles); ++i) {
    auto opened = open_private_file(directory_ / kFiles[i]);
    if (!opened) return tl::unexpected(opened.error());
    places[i]->reset(*opened);
  }
  return files;
}

void IdentityWatch::listen() {
  changes_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (error) return;
                        char discarded[4096];
                        while (::read(changes_.native_handle(), discarded, sizeof discarded) > 0) {}
                        const Lifetime::Watch life = lifetime_.watch();
                        refresh();
                        if (!life.gone()) listen();
                      }));
}

}  // namespace gpuwire::server
