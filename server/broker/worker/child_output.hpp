// ChildOutput reads the standard output and error of one of the server's own processes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// The bounds for one process.
inline constexpr unsigned kChildLinesMax = 256;
inline constexpr size_t kChildLineBytesMax = 1024;   // a longer line is cut into several
inline constexpr size_t kChildBytesPerTurn = 16384;  // before others have their turn

// A pipe; both ends close on exec. The error names the cause.
struct ChildPipe {
  OwnedDescriptor reads, writes;
  static tl::expected<ChildPipe, std::string> open();
};

// The broker's end of a child's output. The child holds a pipe and not the log itself: nothing that it writes is longer
// than a line, can pass for a line of the broker's, or is more than kChildLinesMax lines; further lines are not read,
// and the child's writes fail. The broker's thread only.
class ChildOutput {
 public:
  using Sink = std::function<void(const std::string& line)>;

  // Precondition: `reads` does not block. Throws Asio's exceptions when `reads` cannot be watched. `sink` must not
  // destroy this object.
  ChildOutput(boost::asio::io_context& io, OwnedDescriptor reads, Sink sink);
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;

  // The child has ended: reads its last output.
  void read_rest();

 private:
  enum class Read : uint8_t { some, none_yet, over };
  void listen();
  Read read();
  void take(std::string_view text);
  void end_line();
  void close();

  // Closed: nothing is read any more.
  boost::asio::posix::stream_descriptor pipe_;
  const Sink sink_;
  std::string line_;
  unsigned lines_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
