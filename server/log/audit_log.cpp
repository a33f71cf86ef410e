#include "server/log/audit_log.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

namespace gpuwire::server {
namespace {

tl::expected<OwnedDescriptor, std::string> open_private(const std::filesystem::path& path) {
  OwnedDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600));
  if (!file)
    return tl::unexpected(fmt::format("cannot open the audit log {}: {}", path.string(), std::strerror(errno)));
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return tl::unexpected(fmt::format("the audit log {} is not a file", path.string()));
  if (facts.st_mode & 077)
    return tl::unexpected(fmt::format("the audit log {} is open to others: chmod 600 it", path.string()));
  return file;
}

// True: all of it, in one piece unless the disk is full.
bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(size_t(written));
  }
  return true;
}

}  // namespace

tl::expected<AuditLog, std::string> AuditLog::open(std::filesystem::path path) {
  auto file = open_private(path);
  if (!file) return tl::unexpected(file.error());
  AuditLog log;
  log.path_ = std::move(path);
  log.file_ = std::move(*file);
  return log;
}

tl::expected<void, std::string> AuditLog::reopen() {
  if (path_.empty()) return {};
  auto file = open_private(path_);
  if (!file) return tl::unexpected(file.error());
  file_ = std::move(*file);
  return {};
}

void AuditLog::write(std::string_view event, const LogFields& fields) {
  if (observer_) observer_(event, fields);
  if (!file_) {
    // What becomes of a session has its own line at its end.
    constexpr std::string_view kOfSessions[] = {"queued",   "admitted",       "begun",   "detached",
                                                "attached", "resume_refused", "adopted", "ended"};
    const bool of_session = std::find(std::begin(kOfSessions), std::end(kOfSessions), event) != std::end(kOfSessions);
    log_event(of_session ? spdlog::level::debug : spdlog::level::info, event,
              fmt::format("audit: {} {}", event, json_line(fields)), fields);
    return;
  }
  LogFields line{{"time", utc_time(std::chrono::system_clock::now())}, {"event", event}};
  if (fields.is_object()) line.update(fields);
  std::string text = json_line(line) + "\n";
  if (write_all(file_.get(), text)) return;
  ++lines_lost_;
  log_event(spdlog::level::err, event,
            fmt::format("the audit log {} cannot be written ({}); the line was: {}", path_.string(),
                        std::strerror(errno), json_line(line)),
            line);
}

}  // namespace gpuwire::server
