// The driver's output in this process: device printf on descriptor 1, device asserts on 2. It belongs to the client's
// program. The server's own lines for that program are sent in the same way, each separately.
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
  // The value in place of a descriptor for one whole line of the server.
  static constexpr uint8_t kServerLine = 0;

  // Called in order with at most kOutputPieceBytes, on the thread that read the text, with the capture's lock held.
  using Sink = std::function<void(uint8_t descriptor, std::span<const std::byte> text)>;

  OutputCapture();
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  // Starts the capture. Returns false if the pipes could not be made; nothing has changed then.
  bool start(Sink sink);
  // Gives the sink all text that was printed by calls that returned before. Any thread.
  void drain();
  // Gives a line to the sink without waiting: the line is lost if the pipe is full. Any thread, also before start().
  void log_stderr(std::string_view line);
  // Drains and puts the original descriptors back.
  void stop();

 private:
  struct Pipe {
    int read_end = -1;
    // The descriptor's former file.
    int original = -1;
  };
  bool open_pipe(Pipe& pipe, int descriptor);
  void read_everything() REQUIRES(mutex_);
  void read_all(const Pipe& pipe, uint8_t descriptor) REQUIRES(mutex_);
  void forward();

  Mutex mutex_;
  Sink sink_;
  // The pipes of descriptors 1 and 2.
  Pipe pipes_[2];
  // The pipe of the server's lines, a packet each. It is open for as long as this object, so that log_stderr() needs no
  // lock.
  Pipe lines_;
  int write_end_ = -1;
  int stop_event_ = -1;
  std::thread thread_;
};

}  // namespace gpuwire::server
