// A terminal whose screen is drawn again and again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <termios.h>

namespace gpuwire {

// While it exists, standard output's other screen is shown, keys come at once and without echo, and SIGINT, SIGTERM,
// SIGHUP and SIGWINCH are events. The destructor puts everything back. One at a time.
class Terminal {
 public:
  // None: standard input or output is no terminal.
  static std::optional<Terminal> open();
  Terminal(Terminal&& other) noexcept;
  Terminal& operator=(Terminal&&) = delete;
  ~Terminal();

  // Replaces what is shown, in one write: the lines from `first` on, as many as fit, and `footer` on the last row.
  // Lines that are wider than the terminal are cut.
  void draw(const std::vector<std::string>& lines, size_t first, const std::string& footer);
  size_t columns() const { return columns_; }
  // How many lines fit above the footer.
  size_t rows() const { return rows_ - 1; }

  enum class Event : uint8_t { key, resized, stop, readable, hung_up };
  // Waits for one; `descriptor`: readable is an event, too. key() says which.
  Event wait(int descriptor);
  char key() const { return key_; }

 private:
  Terminal() = default;
  void measure();

  bool active_ = false;
  termios before_{};
  int signals_ = -1;
  size_t columns_ = 80, rows_ = 24;
  char key_ = 0;
};

}  // namespace gpuwire
