#include "command_line/terminal/terminal.hpp"

#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace gpuwire {
namespace {

// ECMA-48 and xterm's other screen, which all terminals of today know. On it the cursor is hidden, and lines are cut.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l", kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l",
                           kHome = "\x1b[H", kClearLine = "\x1b[K", kClearBelow = "\x1b[J";

void write_all(std::string_view text) {
  while (!text.empty()) {
    ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the terminal has gone; wait() sees it
    text.remove_prefix(size_t(written));
  }
}

sigset_t our_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&set, number);
  return set;
}

}  // namespace

std::optional<Terminal> Terminal::open() {
  Terminal terminal;
  if (!::isatty(STDOUT_FILENO) || ::tcgetattr(STDIN_FILENO, &terminal.before_) != 0) return std::nullopt;
  sigset_t set = our_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  terminal.signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  termios raw = terminal.before_;
  // Ctrl-Z would leave the other screen behind; it is a key like any other here.
  raw.c_lflag &= ~tcflag_t(ICANON | ECHO | ISIG);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  terminal.active_ = true;
  terminal.measure();
  write_all(kEnter);
  return terminal;
}

Terminal::Terminal(Terminal&& other) noexcept
    : active_(std::exchange(other.active_, false)),
      before_(other.before_),
      signals_(std::exchange(other.signals_, -1)),
      columns_(other.columns_),
      rows_(other.rows_) {}

Terminal::~Terminal() {
  if (!active_) return;
  write_all(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  sigset_t set = our_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::close(signals_);
}

void Terminal::measure() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return;
  columns_ = size.ws_col;
  rows_ = size.ws_row;
}

void Terminal::draw(const std::vector<std::string>& lines, size_t first, const std::string& footer) {
  std::string screen(kHome);
  for (size_t row = 0; row < rows(); ++row) {
    if (first + row < lines.size()) screen += lines[first + row];
    screen += kClearLine;
    screen += "\r\n";
  }
  screen += footer;
  screen += kClearBelow;
  write_all(screen);
}

Terminal::Event Terminal::wait(int descriptor) {
  for (;;) {
    pollfd ready[3]{{STDIN_FILENO, POLLIN, 0}, {signals_, POLLIN, 0}, {descriptor, POLLIN, 0}};
    if (::poll(ready, 3, -1) < 0) continue;
    if (ready[1].revents) {
      signalfd_siginfo info{};
      if (::read(signals_, &info, sizeof info) == sizeof info && info.ssi_signo == SIGWINCH) {
        measure();
        return Event::resized;
      }
      return Event::stop;
    }
    if (ready[0].revents) return ::read(STDIN_FILENO, &key_, 1) == 1 ? Event::key : Event::hung_up;
    if (ready[2].revents) return Event::readable;
  }
}

}  // namespace gpuwire
