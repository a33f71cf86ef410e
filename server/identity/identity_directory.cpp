#include "server/identity/identity_directory.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLockFile = "lock";
constexpr unsigned kLockStepMs = 20;

std::string failure(const fs::path& file, int error) {
  return fmt::format("{}: {}", file.string(), std::strerror(error));
}

// Returns the user whose server reads a folder: root's commands work for that user, too.
uid_t owner_of(const fs::path& folder) {
  struct stat facts {};
  return ::geteuid() == 0 && ::stat(folder.empty() ? "." : folder.c_str(), &facts) == 0 ? facts.st_uid : ::geteuid();
}

// Files that root writes into another user's folder belong to that user.
bool give_to_owner_of(const fs::path& folder, int descriptor) {
  uid_t owner = owner_of(folder);
  return owner == ::geteuid() || ::fchown(descriptor, owner, gid_t(-1)) == 0;
}

// Empty: only the owner can access it.
std::string why_not_private(const struct stat& facts, uid_t owner) {
  if (facts.st_uid != ::geteuid() && facts.st_uid != 0 && facts.st_uid != owner)
    return fmt::format("it belongs to user {}, not to the one that the server runs as", facts.st_uid);
  if (facts.st_mode & 077)
    return fmt::format("others can access it (mode {:04o}); `chmod go= FILE` fixes that", facts.st_mode & 07777);
  return {};
}

// Closed on every way out.
struct OpenFile {
  int descriptor;
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
};

bool write_whole(int descriptor, std::string_view text) {
  while (!text.empty()) {
    ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(size_t(written));
  }
  return ::fsync(descriptor) == 0;
}

// `of_folder`: the file has to belong to the owner of its folder.
tl::expected<void, std::string> write_new(const fs::path& file, std::string_view text, bool of_folder) {
  OpenFile out{::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (out.descriptor < 0) return tl::unexpected(failure(file, errno));
  if (write_whole(out.descriptor, text) && (!of_folder || give_to_owner_of(file.parent_path(), out.descriptor)))
    return {};
  int error = errno;
  ::unlink(file.c_str());
  return tl::unexpected(failure(file, error));
}

void sync_directory(const fs::path& directory) {
  OpenFile folder{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.descriptor >= 0) ::fsync(folder.descriptor);
}

constexpr const char* kServiceIdentityDirectory = "/etc/gpuwire/identity";

}  // namespace

fs::path default_identity_directory() {
  if (::geteuid() == 0) return kServiceIdentityDirectory;
  if (const char* configuration = std::getenv("XDG_CONFIG_HOME"); configuration && *configuration)
    return fs::path(configuration) / "gpuwire/server";
  const char* home = std::getenv("HOME");
  return fs::path(home && *home ? home : ".") / ".config/gpuwire/server";
}

std::string why_no_identity(const fs::path& directory) {
  const std::string where = directory == default_identity_directory() ? "" : " --directory " + directory.string();
  std::error_code error;
  const bool needs_root = where.empty() && ::geteuid() != 0 && fs::exists(kServiceIdentityDirectory, error);
  return fmt::format(
      "there is no identity in {}: `gpuwire admin{} init` makes one{}", directory.string(), where,
      needs_root ? fmt::format("; that of this machine's service is in {}: use sudo", kServiceIdentityDirectory) : "");
}

tl::expected<IdentityLock, std::string> IdentityLock::take(const fs::path& directory) {
  fs::path file = directory / kLockFile;
  int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (descriptor < 0 && errno == ENOENT) return tl::unexpected(why_no_identity(directory));
  if (descriptor < 0) return tl::unexpected(failure(file, errno));
  IdentityLock lock(descriptor);
  if (!give_to_owner_of(directory, descriptor)) return tl::unexpected(failure(file, errno));
  for (unsigned waited_ms = 0; ::flock(descriptor, LOCK_EX | LOCK_NB) != 0; waited_ms += kLockStepMs) {
    if (errno != EWOULDBLOCK && errno != EINTR) return tl::unexpected(failure(file, errno));
    if (waited_ms >= kLockWaitMs)
      return tl::unexpected(
          fmt::format("{}: another process has been changing this folder for {} s", file.string(), kLockWaitMs / 1000));
    std::this_thread::sleep_for(std::chrono::milliseconds(kLockStepMs));
  }
  return lock;
}

IdentityLock::IdentityLock(IdentityLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

IdentityLock::~IdentityLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

tl::expected<void, std::string> make_identity_directory(const fs::path& directory) {
  std::error_code error;
  if (directory.has_parent_path()) fs::create_directories(directory.parent_path(), error);
  if (error) return tl::unexpected(fmt::format("{}: {}", directory.parent_path().string(), error.message()));
  if (::mkdir(directory.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return tl::unexpected(failure(directory, errno));
  struct stat facts {};
  if (::stat(directory.c_str(), &facts) != 0) return tl::unexpected(failure(directory, errno));
  if (!S_ISDIR(facts.st_mode)) return tl::unexpected(fmt::format("{}: no folder", directory.string()));
  if (std::string reason = why_not_private(facts, owner_of(directory)); !reason.empty())
    return tl::unexpected(fmt::format("{}: {}", directory.string(), reason));
  return {};
}

tl::expected<int, std::string> open_private_file(const fs::path& file) {
  // O_NONBLOCK: the file may be a pipe without a writer.
  OpenFile in{::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)};
  struct stat facts {};
  if (in.descriptor < 0 || ::fstat(in.descriptor, &facts) != 0) return tl::unexpected(failure(file, errno));
  if (!S_ISREG(facts.st_mode)) return tl::unexpected(fmt::format("{}: no regular file", file.string()));
  if (std::string reason = why_not_private(facts, owner_of(file.parent_path())); !reason.empty())
    return tl::unexpected(fmt::format("{}: {}", file.string(), reason));
  return std::exchange(in.descriptor, -1);
}

tl::expected<std::string, std::string> read_private_file(const fs::path& file, size_t bytes_max) {
  auto descriptor = open_private_file(file);
  if (!descriptor) return tl::unexpected(descriptor.error());
  OpenFile in{*descriptor};
  return read_descriptor(in.descriptor, file.string(), bytes_max);
}

tl::expected<std::string, std::string> read_descriptor(int descriptor, std::string_view name, size_t bytes_max) {
  std::string text;
  for (char piece[4096];;) {
    ssize_t got = ::pread(descriptor, piece, sizeof piece, off_t(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tl::unexpected(fmt::format("{}: {}", name, std::strerror(errno)));
    if (got == 0) return text;
    text.append(piece, size_t(got));
    if (text.size() > bytes_max) return tl::unexpected(fmt::format("{}: longer than {} bytes", name, bytes_max));
  }
}

tl::expected<void, std::string> replace_private_file(const fs::path& file, std::string_view text) {
  fs::path fresh = file;
  fresh += ".new";
  ::unlink(fresh.c_str());  // left by an interrupted process; the lock's holder is the only writer
  if (auto written = write_new(fresh, text, true); !written) return written;
  if (::rename(fresh.c_str(), file.c_str()) != 0) {
    int error = errno;
    ::unlink(fresh.c_str());
    return tl::unexpected(failure(file, error));
  }
  sync_directory(file.parent_path());
  return {};
}

tl::expected<void, std::string> create_private_file(const fs::path& file, std::string_view text) {
  return write_new(file, text, false);
}

tl::expected<Register, std::string> read_register(const fs::path& directory) {
  fs::path file = directory / kRegisterFile;
  auto text = read_private_file(file, kRegisterBytesMax);
  if (!text) return tl::unexpected(text.error());
  auto parsed = Register::parse(*text);
  if (!parsed) return tl::unexpected(fmt::format("{}: {}", file.string(), parsed.error()));
  return parsed;
}

tl::expected<void, std::string> write_register(const fs::path& directory, const Register& credentials) {
  return replace_private_file(directory / kRegisterFile, credentials.text());
}

}  // namespace gpuwire::server
