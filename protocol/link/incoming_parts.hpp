// The receiving side of bulk that comes in parts: from a connection's bytes to those of the stream.
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

// Removes the headers of parts from the bytes of a connection, and stores the bytes behind a header whose part comes
// over lanes until that part has arrived. One thread at a time.
class IncomingParts {
 public:
  // Bytes that are looked at at once, and kept at most.
  static constexpr size_t kPollBytes = 64u << 10;

  explicit IncomingParts(AcknowledgementScanner& scanner) : scanner_(scanner) {}
  // From the next frame on, bulk of more than `bytes` comes in parts. False: no memory.
  bool begin(uint64_t bytes);
  bool on() const { return on_; }
  // Another connection: a header that the last one had sent in part is repeated.
  void begin_connection();

  // The remainder of the part that comes over lanes; 0: the stream continues here.
  uint64_t lanes_left() const { return lanes_left_; }
  uint32_t lane_set() const { return header_.lane_set; }
  // This many of its bytes have arrived.
  void came_over_lanes(uint64_t bytes) {
    lanes_left_ -= bytes;
    scanner_.pass_bulk(bytes);
  }

  // Where the next bytes of the connection go: into `out`, not all of it perhaps, or elsewhere.
  std::span<std::byte> room(std::span<std::byte> out) noexcept;
  // Bytes that came before their time: as many as fit into room().
  bool keeps() const { return kept_at_ != kept_.size(); }
  size_t take_cached(std::span<std::byte> into) noexcept;
  // room() has got these. Calls back for each acknowledgement. How many bytes of the stream now stand where they began.
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

  // Bytes of bulk that have come here, over all connections.
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
  size_t have_ = 0;         // bytes of header_
  uint64_t here_left_ = 0;  // of the part that comes here
  uint64_t lanes_left_ = 0;
  uint64_t passed_ = 0;
  std::vector<std::byte> kept_;  // from kept_at_ on; never grows past kPollBytes
  size_t kept_at_ = 0;
  std::string fault_;
};

}  // namespace gpuwire::link
