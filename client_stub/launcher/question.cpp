#include "client_stub/launcher/question.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client_stub/session/ask.hpp"

namespace gpuwire::launcher {

namespace {

constexpr int kWell = 0, kRefused = 1;  // exit codes
constexpr size_t kReadBytes = 64 * 1024;

[[noreturn]] void ask(const std::string& query, int to) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string answer, error;
  const bool well = client::ask_server(std::getenv("GPUWIRE_SERVER"), query, answer, error) == CUDA_SUCCESS;
  for (std::string_view rest = well ? answer : error; !rest.empty();) {
    const ssize_t written = ::write(to, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest.remove_prefix(size_t(written));
  }
  _exit(well ? kWell : kRefused);
}

}  // namespace

Question::Question(const std::string& query) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) == 0) {
    process_ = ::fork();
    if (process_ == 0) ask(query, ends[1]);
    const int error = errno;
    ::close(ends[1]);
    answer_ = ends[0];
    errno = error;
  }
  // Then the descriptor, if there is one, is at its end.
  if (process_ < 0) text_ = std::strerror(errno);
}

Question::~Question() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  if (answer_ >= 0) ::close(answer_);
}

bool Question::read() {
  char piece[kReadBytes];
  const ssize_t length = ::read(answer_, piece, sizeof piece);
  if (length < 0 && errno == EINTR) return false;
  if (length > 0) {
    text_.append(piece, size_t(length));
    return false;
  }
  int status = 0;
  if (process_ > 0 && ::waitpid(process_, &status, 0) == process_) {
    well_ = WIFEXITED(status) && WEXITSTATUS(status) == kWell;
    process_ = -1;
  }
  if (!well_ && text_.empty()) text_ = "the process that asked has ended without an answer";
  return true;
}

}  // namespace gpuwire::launcher
