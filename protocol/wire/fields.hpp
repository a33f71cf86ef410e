// The types of the fields of the session's messages before they are written (generated/wire/session_messages.hpp). All
// of them borrow their data.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ranges>
#include <span>
#include <string_view>
#include <type_traits>

#include <capnp/blob.h>
#include <capnp/layout.h>
#include <capnp/list.h>

namespace gpuwire::wire {

template <class Range, size_t kItemBytes = 1>
concept PlainItems = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
    std::is_trivially_copyable_v<std::ranges::range_value_t<Range>> &&
    (kItemBytes == 1 || sizeof(std::ranges::range_value_t<Range>) == kItemBytes);

// Any trivially copyable items, as they are in memory.
struct Bytes {
  const void* data = nullptr;
  size_t size = 0;

  constexpr Bytes() noexcept = default;
  constexpr Bytes(const void* data, size_t size) noexcept : data(data), size(size) {}
  template <PlainItems Range>
  constexpr Bytes(const Range& items) noexcept
      : data(std::ranges::data(items)), size(std::ranges::size(items) * sizeof(*std::ranges::data(items))) {}
};

// 64-bit words: numbers, or handles of any type.
struct Words {
  const void* data = nullptr;
  size_t count = 0;

  constexpr Words() noexcept = default;
  constexpr Words(const void* data, size_t count) noexcept : data(data), count(count) {}
  template <PlainItems<sizeof(uint64_t)> Range>
  constexpr Words(const Range& items) noexcept : data(std::ranges::data(items)), count(std::ranges::size(items)) {}
};

// Bytes that are not in memory yet: `write` writes them directly into the message.
struct Filled {
  using Write = void (*)(const void* user, std::span<std::byte> out);
  size_t size = 0;
  const void* user = nullptr;
  Write write = nullptr;

  constexpr Filled() noexcept = default;
  // Calls `fill` with room for `size` bytes, unless `size` is 0. `fill` must outlive the message.
  template <class Fill>
  constexpr Filled(size_t size, const Fill& fill) noexcept
      : size(size),
        user(&fill),
        write([](const void* user, std::span<std::byte> out) { (*static_cast<const Fill*>(user))(out); }) {}
};

// --- the words of a message that a field needs beside its place in the structure ------------------------------------

template <class Schema>
constexpr size_t root_words() noexcept {
  constexpr auto kSize = capnp::_::structSize<Schema>();
  return 1 + kSize.data + kSize.pointers;
}
template <class Schema>
constexpr size_t structure_words(size_t count) noexcept {
  constexpr auto kSize = capnp::_::structSize<Schema>();
  return count ? 1 + count * (kSize.data + kSize.pointers) : 0;
}
constexpr size_t byte_words(size_t bytes) noexcept { return (bytes + 7) / 8; }
constexpr size_t text_words(size_t bytes) noexcept { return bytes ? bytes / 8 + 1 : 0; }
inline size_t text_list_words(std::span<const std::string_view> texts) noexcept {
  size_t words = texts.size();
  for (std::string_view text : texts) words += text.size() / 8 + 1;  // an empty text needs a word, too
  return words;
}

// --- writing: an empty field is omitted, which reads as the same value ----------------------------------------------

inline capnp::Data::Reader as_data(const Bytes& bytes) noexcept {
  return {static_cast<const capnp::byte*>(bytes.data), bytes.size};
}

inline void write_filled(capnp::Data::Builder out, const Filled& filled) {
  filled.write(filled.user, {reinterpret_cast<std::byte*>(out.begin()), out.size()});
}
// Writes text that need not be zero-terminated.
inline void write_text(capnp::Text::Builder out, std::string_view text) {
  std::memcpy(out.begin(), text.data(), text.size());
}

inline void write_items(capnp::List<uint64_t>::Builder out, const Words& words) {
  const auto* from = static_cast<const std::byte*>(words.data);
  for (unsigned i = 0; i < out.size(); ++i) {
    uint64_t word;
    std::memcpy(&word, from + i * sizeof word, sizeof word);
    out.set(i, word);
  }
}
template <class Item>
void write_items(typename capnp::List<Item>::Builder out, std::span<const Item> items) {
  for (unsigned i = 0; i < out.size(); ++i) out.set(i, items[i]);
}
inline void write_texts(capnp::List<capnp::Text>::Builder out, std::span<const std::string_view> texts) {
  for (unsigned i = 0; i < out.size(); ++i) write_text(out.init(i, unsigned(texts[i].size())), texts[i]);
}

}  // namespace gpuwire::wire
