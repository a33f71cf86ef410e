#include "server/broker/worker/child_output.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace gpuwire::server {

tl::expected<ChildPipe, std::string> ChildPipe::open() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return tl::unexpected(fmt::format("no pipe for what a process writes: {}", std::strerror(errno)));
  ChildPipe pipe{OwnedDescriptor(ends[0]), OwnedDescriptor(ends[1])};
  // The kernel counts the sizes of pipes per user, so this one is small. If the call fails, the pipe is larger.
  ::fcntl(ends[0], F_SETPIPE_SZ, int(kChildBytesPerTurn));
  // The two ends are two open file descriptions: the flag applies to this end, and the child's writes block as they
  // would on a file.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return pipe;
}

ChildOutput::ChildOutput(boost::asio::io_context& io, OwnedDescriptor reads, Sink sink)
    : pipe_(io), sink_(std::move(sink)) {
  pipe_.assign(reads.get());
  reads.release();
  listen();
}

void ChildOutput::listen() {
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   lifetime_.guard([this](boost::system::error_code error) {
                     if (!error && read() != Read::over) listen();
                   }));
}

ChildOutput::Read ChildOutput::read() {
  if (!pipe_.is_open()) return Read::over;
  std::array<char, kChildBytesPerTurn> bytes;
  const ssize_t got = ::read(pipe_.native_handle(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Read::none_yet;
  if (got > 0) {
    take({bytes.data(), size_t(got)});
  } else {
    if (!line_.empty()) end_line();
    close();
  }
  return pipe_.is_open() ? Read::some : Read::over;
}

void ChildOutput::read_rest() {
  while (read() == Read::some) {}
  if (!line_.empty()) end_line();
}

void ChildOutput::take(std::string_view text) {
  while (!text.empty() && pipe_.is_open()) {
    const size_t room = kChildLineBytesMax - line_.size();
    const size_t end = text.substr(0, room).find('\n');
    line_ += text.substr(0, std::min(end, room));
    if (end == std::string_view::npos && line_.size() < kChildLineBytesMax) return;
    text.remove_prefix(std::min(end == std::string_view::npos ? room : end + 1, text.size()));
    end_line();
  }
}

void ChildOutput::close() {
  boost::system::error_code ignored;
  pipe_.close(ignored);
}

void ChildOutput::end_line() {
  const std::string line = std::exchange(line_, {});
  if (++lines_ <= kChildLinesMax) {
    if (!line.empty()) sink_(line);
    return;
  }
  close();
  sink_("(more, which is left out from here on)");
}

}  // namespace gpuwire::server
