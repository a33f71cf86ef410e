// Bulk beside a connection's stream, where the connection itself can carry it: in messages, each with one stripe
// (wire/lanes.hpp), out of memory that stays and into memory that the receiver names, without another copy.
#pragma once

#include <cstddef>
#include <span>

#include "protocol/transport/transport.hpp"
#include "protocol/wire/lanes.hpp"

namespace gpuwire::transport {

// One stripe at a time in each direction. One thread uses it; wake() comes from any. Its connection outlives it.
class MessageLane {
 public:
  enum class Outcome : uint8_t { under_way, done, failed };

  virtual ~MessageLane() = default;
  // No stripe is longer; both ends' are as long.
  virtual size_t stripe_bytes() const noexcept = 0;
  // Would bytes be sent from where they are? Any thread.
  virtual bool takes(std::span<const std::byte> memory) const noexcept = 0;

  // `data` is read until sending() says otherwise, or finish() has returned. Bytes that the fabric may not use where
  // they are, are copied. False: nothing goes any more.
  virtual bool begin_sending(const wire::StripeHeader& header, std::span<const std::byte> data) noexcept = 0;
  virtual Outcome sending() noexcept = 0;

  // The next stripe that has come; its bytes wait. False: none.
  virtual bool next(wire::StripeHeader& header) noexcept = 0;
  // Fetches its bytes into `out`, which is as long as it is, and is written until fetching() says otherwise, or
  // finish() has returned. False: the fabric may not use that memory.
  virtual bool begin_fetching(std::span<std::byte> out) noexcept = 0;
  // Fetches them into memory of the lane, where they are until next().
  virtual void begin_fetching() noexcept = 0;
  virtual Outcome fetching() noexcept = 0;
  virtual const std::byte* fetched() const noexcept = 0;

  // The connection has ended, and nothing that has come is left.
  virtual bool over() noexcept = 0;
  // kReadable: a stripe, or the end of fetching; kWritable: the end of sending. The end of the connection is both.
  virtual void wait(unsigned interest, Nanoseconds timeout) noexcept = 0;
  virtual void wake() noexcept = 0;
  // If anything is under way, its connection ends, and this waits until no device reads or writes for it any more.
  // False: one may still do so after two seconds.
  virtual bool finish() noexcept = 0;
};

}  // namespace gpuwire::transport
