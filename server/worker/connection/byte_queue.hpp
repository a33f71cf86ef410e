// A queue of received bytes that are not used yet, charged to the session's account of host memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <span>

#include "server/base/host_memory.hpp"

namespace gpuwire::server {

class ByteQueue {
 public:
  static constexpr size_t kBlockBytes = 256u << 10;

  // `account` outlives the queue. With null, no account is charged.
  explicit ByteQueue(HostMemory* account) : charge_(account) {}

  bool empty() const { return bytes_ == 0; }
  size_t size() const { return bytes_; }

  // Returns room for the next bytes, empty if the account has none; the caller reports the received bytes by added().
  std::span<std::byte> space() {
    if (blocks_.empty() || end_ == kBlockBytes) {
      if (!charge_.grow(kBlockBytes)) return {};
      blocks_.emplace_back(new std::byte[kBlockBytes]);
      end_ = 0;
    }
    return {blocks_.back().get() + end_, kBlockBytes - end_};
  }
  void added(size_t bytes) {
    end_ += bytes;
    bytes_ += bytes;
  }

  // Calls `visit` with all bytes, oldest first, in pieces.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      size_t begin = i == 0 ? begin_ : 0, end = i + 1 == blocks_.size() ? end_ : kBlockBytes;
      if (begin != end) visit(std::span<const std::byte>(blocks_[i].get() + begin, end - begin));
    }
  }

  // Removes the oldest bytes, as many as fit into `out`. Returns their number.
  size_t take(std::span<std::byte> out) {
    size_t taken = 0;
    while (taken < out.size() && bytes_ != 0) {
      size_t here = (blocks_.size() == 1 ? end_ : kBlockBytes) - begin_;
      size_t piece = std::min(here, out.size() - taken);
      std::memcpy(out.data() + taken, blocks_.front().get() + begin_, piece);
      taken += piece;
      begin_ += piece;
      bytes_ -= piece;
      if (piece == here) {
        blocks_.pop_front();
        charge_.shrink(kBlockBytes);
        begin_ = 0;
        if (blocks_.empty()) end_ = 0;
      }
    }
    return taken;
  }

 private:
  std::deque<std::unique_ptr<std::byte[]>> blocks_;
  HostCharge charge_;
  // The position in the first block.
  size_t begin_ = 0;
  // The position in the last block.
  size_t end_ = 0;
  size_t bytes_ = 0;
};

}  // namespace gpuwire::server
