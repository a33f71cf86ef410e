// Numbers in stored text.
#pragma once

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

namespace gpuwire::client {

// Takes a number from the beginning of `text`. Returns false if there is none, or it is too large.
template <class Number>
bool read_number(std::string_view& text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  text.remove_prefix(size_t(end - text.data()));
  return error == std::errc();
}

}  // namespace gpuwire::client
