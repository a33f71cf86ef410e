// IncomingParts converts the received bytes of a connection, which contain headers of parts, to the bytes of the
// stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "protocol/link/acknowledgements.hpp"
#include "protocol/wire/lanes.hpp"

namespace gpuwire::link {

// IncomingParts removes the headers of parts. When a header announces a part over lanes, IncomingParts stores the bytes
// behind the header until that part has arrived. Thread: one at a time.
class IncomingParts {
 public:
  // Bytes that are read from the connection at once, and the maximum of stored bytes.
  static constexpr size_t kPollBytes = 64u << 10;

  explicit IncomingParts(AcknowledgementScanner& scanner) : scanner_(scanner) {}
  // From the next frame on, bulk of more than `bytes` arrives in parts. Returns false if memory is short.
  bool begin(uint64_t bytes);
  bool on() const { return on_; }
  // Begins a new connection. The peer sends a header again that the old connection carried only in part.
  void begin_connection();

  // Returns the number of missing bytes of the part that arrives over lanes. 0: the next bytes of the stream arrive
  // over the connection.
  uint64_t lanes_left() const { return lanes_left_; }
  uint32_t lane_set() const { return header_.lane_set; }
  // Counts `bytes` of that part that have arrived over lanes.
  void came_over_lanes(uint64_t bytes) {
    lanes_left_ -= bytes;
    scanner_.pass_bulk(bytes);
  }

  // Returns the buffer for the next bytes of the connection: a part of `out`, or an internal buffer.
  std::span<std::byte> room(std::span<std::byte> out) noexcept;
  // Returns true if bytes are stored that arrived before their turn. The caller gets as many of them as fit into
  // room().
  bool keeps() const { return kept_at_ != kept_.size(); }
  size_t take_cached(std::span<std::byte> into) noexcept;
  // Handles the bytes that room() has received, and calls `found` for each acknowledgement. Returns the number of bytes
  // of the stream that now stand at the beginning of the buffer.
  template <class Found>
  size_t take(std::span<std::byte> bytes, Found&& found) {
    if (bytes.data() == reinterpret_cast<std::byte*>(&header_) + have_) return take_header(bytes.size());
    size_t stream = 0;
    while (!bytes.empty() && !faulty()) {
      if (scanner_.bulk_left() == 0) {
        size_t walked = scanner_.scan(bytes, found);
        stream += walked;
        bytes = bytes.subspan(walked);
      } else if (here_left_ != 0) {
        size_t step = size_t(std::min<uint64_t>(bytes.size(), here_left_));
        pass_here(step);
        stream += step;
        bytes = bytes.subspan(step);
      } else {
        bytes = cut_header_out(bytes);
      }
    }
    return stream;
  }

  // Returns the bytes of bulk that have arrived over connections and not over lanes, over all connections.
  uint64_t passed() const { return passed_; }
  bool faulty() const { return !fault_.empty(); }
  const std::string& fault() const { return fault_; }

 private:
  void pass_here(size_t bytes) {
    here_left_ -= bytes;
    passed_ += bytes;
    scanner_.pass_bulk(bytes);
  }
  size_t take_header(size_t bytes) noexcept;
  std::span<std::byte> cut_header_out(std::span<std::byte> bytes) noexcept;
  void header_complete() noexcept;

  AcknowledgementScanner& scanner_;
  bool on_ = false;
  wire::PartHeader header_;
  // Bytes of header_ that have been read.
  size_t have_ = 0;
  // Bytes left of the part that arrives over the connection.
  uint64_t here_left_ = 0;
  uint64_t lanes_left_ = 0;
  uint64_t passed_ = 0;
  // The stored bytes are those from kept_at_ on. The vector never grows past kPollBytes.
  std::vector<std::byte> kept_;
  size_t kept_at_ = 0;
  std::string fault_;
};

}  // namespace gpuwire::link
