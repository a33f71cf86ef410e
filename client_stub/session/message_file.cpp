#include "client_stub/session/message_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "client_stub/session/environment.hpp"
#include "client_stub/session/file_limit.hpp"

namespace gpuwire::client {

void note_message(std::string_view text) noexcept {
  const char* path = setting(kMessageFileVariable);
  if (!path || *path != '/') return;
  try {
    std::string line = std::to_string(getpid()) + " ";
    line.append(text);
    std::replace(line.begin(), line.end(), '\n', ' ');
    line += '\n';
    const int file = ::open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return;
    struct stat facts {};
    const bool room = ::fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid() &&
                      size_t(facts.st_size) + line.size() <= kMessageFileBytesMax;
    if (room && may_write(file, line.size())) [[maybe_unused]]
      ssize_t written = ::write(file, line.data(), line.size());
    ::close(file);
  } catch (...) {  // no memory: the line is on standard error
  }
}

void print_line(const std::string& text) {
  note_message(text);
  std::string line = "gpuwire: " + text + "\n";
  if (!may_write(STDERR_FILENO, line.size())) return;
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace gpuwire::client
