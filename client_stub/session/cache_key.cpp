#include "client_stub/session/cache_key.hpp"

#include "client_stub/session/environment.hpp"
#include "client_stub/session/file_limit.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace gpuwire::client {

namespace {

// Accepts only regular files of this user that no other user may access.
std::optional<CacheKey> read_key(const std::string& file, bool& there) {
  // O_NONBLOCK: the file may be a pipe.
  int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  there = descriptor >= 0;
  if (!there) return std::nullopt;
  CacheKey key;
  struct stat status {};
  bool good = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid() &&
              (status.st_mode & 077) == 0 && status.st_size == off_t(key.size()) &&
              ::read(descriptor, key.data(), key.size()) == ssize_t(key.size());
  ::close(descriptor);
  if (!good) return std::nullopt;
  return key;
}

void make_folders(const std::string& file) {
  for (size_t slash = file.find('/', 1); slash != std::string::npos; slash = file.find('/', slash + 1))
    ::mkdir(file.substr(0, slash).c_str(), 0700);
}

// The key is written under a temporary name first, so that no reader gets half a key; link() leaves an existing key in
// place.
void make_key(const std::string& file) {
  CacheKey key;
  if (::getrandom(key.data(), key.size(), 0) != ssize_t(key.size())) return;
  make_folders(file);
  std::string temporary = file + "." + std::to_string(::getpid());
  int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) {
    ::unlink(temporary.c_str());  // left by a process that died here
    return;
  }
  bool written =
      may_write(descriptor, key.size()) && ::write(descriptor, key.data(), key.size()) == ssize_t(key.size());
  ::close(descriptor);
  if (written) static_cast<void>(::link(temporary.c_str(), file.c_str()));
  ::unlink(temporary.c_str());
}

}  // namespace

std::string cache_key_file() {
  auto absolute = [](const char* value) { return value && value[0] == '/'; };
  if (const char* file = setting("GPUWIRE_CACHE_KEY_FILE"); file && *file) return absolute(file) ? file : "";
  if (const char* state = setting("XDG_STATE_HOME"); absolute(state)) return std::string(state) + "/gpuwire/cache_key";
  if (const char* home = setting("HOME"); absolute(home)) return std::string(home) + "/.local/state/gpuwire/cache_key";
  return "";
}

std::optional<CacheKey> cache_key(const std::string& file) {
  if (file.empty()) return std::nullopt;
  bool there = false;
  auto key = read_key(file, there);
  if (there) return key;
  make_key(file);
  return read_key(file, there);
}

}  // namespace gpuwire::client
