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
#include <unistd.h>

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

// Returns the written bytes: all of them in one write, unless the disk is full; fewer: errno has the reason.
size_t write_all(int file, std::string_view text) {
  size_t done = 0;
  while (done < text.size()) {
    ssize_t written = ::write(file, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += size_t(written);
  }
  return done;
}

// Returns whether the file ends within a line, because its last writer had no disk space, or was killed.
bool ends_within_line(const std::filesystem::path& path) {
  const OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  char last = '\n';
  const off_t bytes = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  return bytes > 0 && ::pread(file.get(), &last, 1, bytes - 1) == 1 && last != '\n';
}

}  // namespace

tl::expected<AuditLog, std::string> AuditLog::open(std::filesystem::path path) {
  auto file = open_private(path);
  if (!file) return tl::unexpected(file.error());
  AuditLog log;
  log.path_ = std::move(path);
  log.file_ = std::move(*file);
  log.torn_ = ends_within_line(log.path_);
  return log;
}

tl::expected<void, std::string> AuditLog::reopen() {
  if (path_.empty()) return {};
  auto file = open_private(path_);
  if (!file) return tl::unexpected(file.error());
  file_ = std::move(*file);
  torn_ = ends_within_line(path_);
  return {};
}

namespace {

// Returns the tenant whose budget the line uses; empty: the line is written in any case. An administrator's actions
// have no tenant.
std::string payer_of(std::string_view event, const LogFields& fields) {
  if (!fields.is_object() || !fields.contains("tenant") || !fields["tenant"].is_string()) return {};
  if (event == "ended" && fields.contains("seconds") && fields["seconds"].is_number() &&
      fields["seconds"].get<double>() >= kAuditedSessionSeconds)
    return {};
  return fields["tenant"].get<std::string>();
}

}  // namespace

bool AuditLog::write(std::string_view event, const LogFields& fields) {
  if (observer_) observer_(event, fields);
  if (const std::string tenant = payer_of(event, fields); !tenant.empty()) {
    const auto now = clock_();
    budget_.settle(now, [&](const std::string& quiet, uint64_t lines) { log_left_out(quiet, lines); });
    const bool end = event == "ended";
    const auto left_out = budget_.take(tenant, now, end ? 0 : kAuditLinesForEnds, !end);
    if (!left_out) return false;
    if (*left_out != 0) log_left_out(tenant, *left_out);
  }
  write_line(event, fields);
  return true;
}

void AuditLog::log_left_out(const std::string& tenant, uint64_t lines) {
  LogFields fields{{"tenant", tenant}, {"lines", lines}};
  if (observer_) observer_("left_out", fields);
  write_line("left_out", fields);
}

void AuditLog::write_line(std::string_view event, const LogFields& fields) {
  if (!file_) {
    // A session's end has its own line.
    constexpr std::string_view kOfSessions[] = {"queued",   "admitted",       "begun",   "detached",
                                                "attached", "resume_refused", "adopted", "ended"};
    const bool of_session = std::find(std::begin(kOfSessions), std::end(kOfSessions), event) != std::end(kOfSessions);
    log_event(of_session ? spdlog::level::debug : spdlog::level::info, event,
              fmt::format("audit: {} {}", event, json_line(fields)), fields);
    return;
  }
  LogFields line{{"time", utc_time(std::chrono::system_clock::now())}, {"event", event}};
  if (fields.is_object()) line.update(fields);
  const std::string text = (torn_ ? "\n" : "") + json_line(line) + "\n";
  const size_t written = write_all(file_.get(), text);
  if (written == text.size()) {
    torn_ = false;
    return;
  }
  const int error = errno;
  take_back(written);
  ++lines_lost_;
  log_event(spdlog::level::err, event,
            fmt::format("the audit log {} cannot be written ({}); the line was: {}", path_.string(),
                        std::strerror(error), json_line(line)),
            line);
}

// Nobody else appends to it.
void AuditLog::take_back(size_t bytes) {
  if (bytes == 0) return;
  struct stat facts {};
  const bool taken = ::fstat(file_.get(), &facts) == 0 && facts.st_size >= off_t(bytes) &&
                     ::ftruncate(file_.get(), facts.st_size - off_t(bytes)) == 0;
  if (!taken) torn_ = true;
}

}  // namespace gpuwire::server
