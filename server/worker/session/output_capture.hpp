// The driver's output of this process: device printf on descriptor 1, device asserts on 2. It belongs to the client's
// program. Lines of the server's own take the same way, each on its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <thread>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// Puts pipes in place of descriptors 1 and 2 of the process and forwards their output. One at a time.
class OutputCapture {
 public:
  static constexpr uint8_t kServerLine = 0;  // for a descriptor: one whole line of the server's own

  // Called with at most kOutputPieceBytes, in order, on whichever thread found the text, under the capture's lock.
  using Sink = std::function<void(uint8_t descriptor, std::span<const std::byte> text)>;

  OutputCapture();
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  // False: the pipes could not be had; nothing is then changed.
  bool start(Sink sink);
  // When it returns, everything printed by calls that had returned before has been given to the sink. Any thread.
  void drain();
  // Gives a line to the sink. Never waits: it is lost where the sink takes nothing. Any thread, before start() too.
  void log_stderr(std::string_view line);
  // Drains and puts the original descriptors back.
  void stop();

 private:
  struct Pipe {
    int read_end = -1;
    int original = -1;  // the descriptor's former file
  };
  bool open_pipe(Pipe& pipe, int descriptor);
  void read_everything() REQUIRES(mutex_);
  void read_all(const Pipe& pipe, uint8_t descriptor) REQUIRES(mutex_);
  void forward();

  Mutex mutex_;
  Sink sink_;
  Pipe pipes_[2];  // of descriptors 1 and 2
  Pipe lines_;     // of packets, a line each; open for as long as this object, so that log_stderr() needs no lock
  int write_end_ = -1;
  int stop_event_ = -1;
  std::thread thread_;
};

}  // namespace gpuwire::server
