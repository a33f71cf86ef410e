#include "server/worker/session/output_capture.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <iterator>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {

OutputCapture::OutputCapture() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK | O_DIRECT) != 0) return;  // no lines, then
  lines_.read_end = ends[0];
  write_end_ = ends[1];
}

OutputCapture::~OutputCapture() {
  stop();
  if (lines_.read_end >= 0) ::close(lines_.read_end);
  if (write_end_ >= 0) ::close(write_end_);
}

bool OutputCapture::open_pipe(Pipe& pipe, int descriptor) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kOutputPipeBytes);  // may be refused; then the forwarder just wakes more often
  pipe.read_end = ends[0];
  pipe.original = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  bool placed = ::dup2(ends[1], descriptor) >= 0;
  ::close(ends[1]);
  return placed;
}

bool OutputCapture::start(Sink sink) {
  sink_ = std::move(sink);
  std::fflush(nullptr);
  stop_event_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_event_ < 0 || !open_pipe(pipes_[0], STDOUT_FILENO) || !open_pipe(pipes_[1], STDERR_FILENO)) {
    stop();
    return false;
  }
  thread_ = std::thread([this] { forward(); });
  return true;
}

void OutputCapture::read_all(const Pipe& pipe, uint8_t descriptor) {
  if (pipe.read_end < 0) return;
  std::byte text[kOutputPieceBytes];
  for (;;) {
    ssize_t got = ::read(pipe.read_end, text, sizeof text);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    sink_(descriptor, {text, size_t(got)});
  }
}

void OutputCapture::read_everything() {
  read_all(lines_, kServerLine);
  for (uint8_t i = 0; i < 2; ++i) read_all(pipes_[i], uint8_t(i + 1));
}

void OutputCapture::log_stderr(std::string_view line) {
  // A packet is whole up to PIPE_BUF.
  [[maybe_unused]] ssize_t written = ::write(write_end_, line.data(), std::min<size_t>(line.size(), PIPE_BUF));
}

void OutputCapture::drain() {
  std::fflush(stdout);
  MutexLock lock(mutex_);
  read_everything();
}

void OutputCapture::forward() {
  for (;;) {
    pollfd ready[] = {{stop_event_, POLLIN, 0},
                      {pipes_[0].read_end, POLLIN, 0},
                      {pipes_[1].read_end, POLLIN, 0},
                      {lines_.read_end, POLLIN, 0}};
    if (::poll(ready, std::size(ready), -1) < 0 && errno != EINTR) return;
    if (ready[0].revents) return;
    MutexLock lock(mutex_);
    read_everything();
  }
}

void OutputCapture::stop() {
  if (thread_.joinable()) {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(stop_event_, &one, sizeof one);
    thread_.join();
    drain();
  }
  for (int i = 0; i < 2; ++i) {
    Pipe& pipe = pipes_[i];
    if (pipe.original >= 0) {
      std::fflush(nullptr);
      ::dup2(pipe.original, i + 1);
      ::close(pipe.original);
    }
    if (pipe.read_end >= 0) ::close(pipe.read_end);
    pipe = Pipe{};
  }
  if (stop_event_ >= 0) ::close(stop_event_);
  stop_event_ = -1;
}

}  // namespace gpuwire::server
