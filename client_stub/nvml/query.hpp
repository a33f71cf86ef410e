// The base of the generated functions: one query from its arguments to its values. Nothing is sent after an invalid
// argument, and no byte beyond a reply is read.
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

// Is an answer good for as long as the library stays initialised?
enum class Kept : uint8_t { never, always };

// The first failure stands; everything after it does nothing. Methods do not throw: running out of memory is kMemory.
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
  // A text that comes back into `room` bytes.
  void text_room(const char* out, uint32_t room) noexcept;
  void text(const char* text) noexcept;
  void bytes(const void* structure, size_t size) noexcept;
  // A structure that begins with its size and version: one of `codes`.
  void versioned(const void* structure, std::initializer_list<uint32_t> codes) noexcept;
  // The number of items that there is room for; the sent number is bounded.
  unsigned int count(const unsigned int* count) noexcept;
  void room(const void* items) noexcept { value(uint8_t(items != nullptr)); }
  void items(const void* items, int count, size_t item_bytes) noexcept;

  // True: there are values to take. False: status() is the function's result.
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
  // After the last one: the function's result.
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
  int answered_ = kSuccess;  // the server's status, when values came with it
  std::shared_ptr<Connection> connection_;
  std::string arguments_, values_;
  size_t taken_ = 0;
};

// The result of a function that ends early: kUninitialized before anything else, as in NVIDIA's library.
int refuse(int status) noexcept;

}  // namespace gpuwire::nvml
