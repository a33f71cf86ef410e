// One query of a generated function, from its arguments to its values. Sends nothing after an invalid argument, and
// reads no byte beyond a reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>

#include "protocol/nvml/abi.hpp"

#define GPUWIRE_NVML_EXPORT __attribute__((visibility("default")))

namespace gpuwire::nvml {

class Connection;

// Whether an answer stays valid while the library is initialised.
enum class Kept : uint8_t { never, always };

// The first failure stands; later steps do nothing. Methods do not throw: a lack of memory is kMemory.
class Query {
 public:
  Query(uint32_t function, Kept kept) noexcept;
  ~Query();

  // --- arguments, in the order of the description ---
  void device(nvmlDevice device) noexcept;
  template <class Number>
  void value(Number number) noexcept {
    append(&number, sizeof number);
  }
  void needs(const void* out) noexcept {
    if (!out) fail(kInvalidArgument);
  }
  // A text that the server returns, in at most `room` bytes.
  void text_room(const char* out, uint32_t room) noexcept;
  void text(const char* text) noexcept;
  void bytes(const void* structure, size_t size) noexcept;
  // A structure that begins with its size and version: one of `codes`.
  void versioned(const void* structure, std::initializer_list<uint32_t> codes) noexcept;
  // The number of items that fit; the sent number is bounded.
  unsigned int count(const unsigned int* count) noexcept;
  void room(const void* items) noexcept { value(uint8_t(items != nullptr)); }
  void items(const void* items, int count, size_t item_bytes) noexcept;

  // Returns true if there are values to take; otherwise status() is the function's result.
  bool send() noexcept;
  int status() const noexcept { return status_; }

  // --- values, in the order of the description ---
  template <class Number>
  void take(Number* out) noexcept {
    Number number;
    if (take_raw(&number, sizeof number)) *out = number;
  }
  void take_text(char* out, uint32_t room) noexcept;
  void take_bytes(void* out, size_t size) noexcept { take_raw(out, size); }
  void take_versioned(void* out) noexcept;
  // At most `room` items.
  void take_items(void* out, uint32_t room, size_t item_bytes) noexcept;
  // Called after the last value. Returns the function's result.
  int finish() noexcept;

 private:
  void fail(int status) noexcept {
    if (status_ == kSuccess) status_ = status;
  }
  void append(const void* data, size_t size) noexcept;
  bool take_raw(void* out, size_t size) noexcept;

  const uint32_t function_;
  const Kept kept_;
  int status_ = kSuccess;
  // The server's status, when values came with it.
  int answered_ = kSuccess;
  std::shared_ptr<Connection> connection_;
  std::string arguments_, values_;
  size_t taken_ = 0;
};

// Ends a function early and returns its result: kUninitialized before any other status, as in NVIDIA's library.
int refuse(int status) noexcept;

}  // namespace gpuwire::nvml
