// The parts of the generated replay of management queries: arguments from an untrusted message, memory that no library
// function can write past, and the result values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "nvml/table.hpp"
#include "protocol/nvml/abi.hpp"

namespace gpuwire::nvml {

// Padding after every buffer: a library newer than the description may write more than the described size of its
// structure.
inline constexpr size_t kBufferSlackBytes = 4096;

class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), memory_((bytes + kBufferSlackBytes) / sizeof(uint64_t) + 1) {}
  // No memory: data() is null.
  static Buffer none() { return Buffer(); }

  void* data() { return memory_.empty() ? nullptr : memory_.data(); }
  char* text() { return static_cast<char*>(data()); }
  template <class Item>
  Item* as() {
    return static_cast<Item*>(data());
  }
  const char* begin() const { return reinterpret_cast<const char*>(memory_.data()); }
  size_t bytes() const { return bytes_; }

 private:
  Buffer() = default;
  size_t bytes_ = 0;
  std::vector<uint64_t> memory_;
};

// Reads in order; throws server::ProtocolFault at invalid bytes.
class Arguments {
 public:
  Arguments(std::string_view bytes, std::span<const nvmlDevice> devices) : bytes_(bytes), devices_(devices) {}

  nvmlDevice device();
  template <class Number>
  Number value() {
    Number number;
    take(&number, sizeof number);
    return number;
  }
  bool flag() { return value<uint8_t>() != 0; }
  unsigned int count();
  std::string text();
  Buffer bytes(size_t size);
  Buffer versioned(std::initializer_list<uint32_t> codes);
  Buffer items(int count, size_t item_bytes);
  // Everything has been read.
  void end() const;

  // Memory for the results. `items` and `room` are cut to the limits, and the library gets the cut values.
  Buffer room(bool wanted, unsigned int& items, size_t item_bytes) const;
  Buffer text_room(unsigned int& room) const;
  Buffer text_room(int room) const { return Buffer(size_t(room)); }

 private:
  void take(void* out, size_t size);
  std::string_view bytes_;
  std::span<const nvmlDevice> devices_;
};

class Values {
 public:
  template <class Number>
  void value(Number number) {
    static_assert(std::is_arithmetic_v<Number>);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void text(const Buffer& buffer);
  void bytes(const Buffer& buffer) { bytes_.append(buffer.begin(), buffer.bytes()); }
  // Writes the number of items, then the items; none if the client has no room for any.
  void items(const Buffer& buffer, unsigned int count, size_t item_bytes);
  // The number of items that the client sent.
  void items(const Buffer& buffer, int, size_t) { bytes(buffer); }
  const std::string& all() const { return bytes_; }

 private:
  std::string bytes_;
};

// Called for a function that the library lacks.
template <class... Parameters, class... Given>
int call(const Table& nvml, int (*function)(Parameters...), Given&&... given) {
  return function ? function(given...) : nvml.missing;
}

using QueryFunction = int (*)(const Table& nvml, Arguments& arguments, Values& values);
// Finds a query by ordinal; null: there is none. Generated.
std::span<const QueryFunction> query_functions();

}  // namespace gpuwire::nvml
