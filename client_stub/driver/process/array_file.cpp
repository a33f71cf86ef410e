#include "client_stub/driver/process/array_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client_stub/session/file_limit.hpp"

namespace gpuwire::client {

namespace {

constexpr std::string_view kEmpty = "[\n]\n", kBehindElement = ",\n", kEnd = "\n]\n";
constexpr size_t kTailBytes = 4;  // the bytes that show how a file ends
constexpr useconds_t kLockTryUs = 1000;

bool write_all(int file, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(size_t(written));
  }
  return true;
}

// Uses one call unless the kernel writes less, so that a killed process seldom leaves a partial write.
bool write_all_at(int file, off_t at, iovec* parts, int count) noexcept {
  while (count > 0) {
    ssize_t written = ::pwritev(file, parts, count, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    for (; count > 0 && size_t(written) >= parts->iov_len; --count) written -= ssize_t((parts++)->iov_len);
    if (count == 0) break;
    parts->iov_base = static_cast<char*>(parts->iov_base) + written;
    parts->iov_len -= size_t(written);
  }
  return true;
}

iovec part(std::string_view text) noexcept { return {const_cast<char*>(text.data()), text.size()}; }

// The file appears complete or not at all, because several processes may create it concurrently.
bool create(const char* path) {
  const std::string own = std::string(path) + "." + std::to_string(::getpid());
  const int file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  bool there = write_all(file, kEmpty);
  ::close(file);
  there = there && (::link(own.c_str(), path) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlink(own.c_str());
  errno = error;
  return there;
}

}  // namespace

bool ArrayFile::open(const char* path, std::string& error) {
  struct stat found {};
  const bool there = ::stat(path, &found) == 0 || (errno == ENOENT && create(path) && ::stat(path, &found) == 0);
  if (there) {
    closes_ = S_ISREG(found.st_mode);
    file_ = transport::OwnDescriptor(::open(path, (closes_ ? O_RDWR : O_WRONLY | O_APPEND) | O_CLOEXEC));
  }
  if (file_) return true;
  const int why = errno;
  error = "cannot write the profile " + std::string(path).substr(0, kPathShownMax) + ": " + std::strerror(why);
  return false;
}

// A lock of the process, which a child does not inherit: with flock() parent and child would share one.
bool ArrayFile::lock() noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  for (int tries = 0; tries < kLockTriesMax; ++tries) {
    if (::fcntl(file_.get(), F_SETLK, &whole) == 0) return true;
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      // Without locks, several processes can only append lines.
      closes_ = false;
      ::fcntl(file_.get(), F_SETFL, O_APPEND);
      return false;
    }
    ::usleep(kLockTryUs);
  }
  return false;
}

bool ArrayFile::append(std::string_view lines) noexcept {
  if (!file_.is_ours()) return errno = EBADF, false;
  if (closes_ && lock()) {
    const bool written = append_and_close(lines);
    const int error = errno;
    struct flock whole {};
    whole.l_type = F_UNLCK;
    whole.l_whence = SEEK_SET;
    ::fcntl(file_.get(), F_SETLK, &whole);
    errno = error;
    return written;
  }
  if (!may_write(file_.get(), lines.size())) return errno = EFBIG, false;
  return !closes_ && write_all(file_.get(), lines);
}

bool ArrayFile::append_and_close(std::string_view lines) noexcept {
  struct stat now {};
  char read[kTailBytes] = {};
  if (::fstat(file_.get(), &now) != 0) return false;
  const off_t tail_at = std::max<off_t>(now.st_size - off_t(kTailBytes), 0);
  const ssize_t length = ::pread(file_.get(), read, kTailBytes, tail_at);
  if (length < 0) return false;
  const std::string_view tail(read, size_t(length));
  // A file with neither of the two ends is an array that is still open.
  std::string_view between, replaced;
  if (tail == kEmpty) {
    replaced = tail.substr(2);
  } else if (tail.ends_with(kEnd)) {
    replaced = tail.substr(tail.size() - kEnd.size());
    between = kBehindElement;
  }
  const off_t at = now.st_size - off_t(replaced.size());
  lines.remove_suffix(kBehindElement.size());
  if (!may_grow_to(uint64_t(at) + between.size() + lines.size() + kEnd.size())) return errno = EFBIG, false;
  iovec parts[] = {part(between), part(lines), part(kEnd)};
  if (write_all_at(file_.get(), at, parts, int(std::size(parts)))) return true;
  const int error = errno;
  iovec before = part(replaced);
  write_all_at(file_.get(), at, &before, 1);
  if (::ftruncate(file_.get(), now.st_size) != 0) return false;
  errno = error;
  return false;
}

}  // namespace gpuwire::client
