#include "server/software_device/execution/printf.hpp"

#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "server/software_device/execution/memory_access.hpp"

namespace gpuwire::software_device {
namespace {

constexpr int kWidthMax = 4096;
constexpr int kArgumentsMax = 32;  // of one printf call (CUDA C++ guide, "Limitations")

class ArgumentReader {
 public:
  ArgumentReader(Warp& w, const Op& op, unsigned lane, uint64_t address)
      : w_(w), op_(op), lane_(lane), address_(address) {}

  template <class T>
  bool next(T& value) {
    offset_ = (offset_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    uint8_t* from = resolve_lane(w_, op_, lane_, ptx::Space::generic, address_ + offset_, sizeof(T), AccessKind::load);
    if (from == nullptr) return false;
    std::memcpy(&value, from, sizeof(T));
    offset_ += sizeof(T);
    ++count_;
    return true;
  }
  int count() const { return count_; }

 private:
  Warp& w_;
  const Op& op_;
  unsigned lane_;
  uint64_t address_;
  uint64_t offset_ = 0;
  int count_ = 0;
};

struct Conversion {
  std::string flags;
  int width = 0;
  int precision = -1;
  bool wide = false;  // ll, l, j, z, t: 8 bytes
  int narrow = 0;     // h: 1, hh: 2
  char letter = 0;
};

template <class T>
void append(std::string& text, const Conversion& conversion, const char* length, T value) {
  std::string format = "%" + conversion.flags + "*.*" + length + conversion.letter;
  char small[256];
  int needed = std::snprintf(small, sizeof small, format.c_str(), conversion.width, conversion.precision, value);
  if (needed < 0) return;
  if (static_cast<size_t>(needed) < sizeof small) {
    text.append(small, static_cast<size_t>(needed));
    return;
  }
  std::vector<char> large(static_cast<size_t>(needed) + 1);
  std::snprintf(large.data(), large.size(), format.c_str(), conversion.width, conversion.precision, value);
  text.append(large.data(), static_cast<size_t>(needed));
}

bool read_number(const std::string& format, size_t& at, ArgumentReader& arguments, int& value) {
  if (at < format.size() && format[at] == '*') {
    ++at;
    int32_t given = 0;
    if (!arguments.next(given)) return false;
    value = given;
  } else {
    value = 0;
    while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
      if (value <= kWidthMax) value = value * 10 + (format[at] - '0');
      ++at;
    }
  }
  if (value > kWidthMax) value = kWidthMax;
  if (value < -kWidthMax) value = -kWidthMax;
  return true;
}

bool parse_conversion(const std::string& format, size_t& at, ArgumentReader& arguments, Conversion& c) {
  while (at < format.size() && std::strchr("-+ #0", format[at]) != nullptr) c.flags += format[at++];
  if (c.flags.size() > 8) c.flags.resize(8);
  if (!read_number(format, at, arguments, c.width)) return false;
  if (at < format.size() && format[at] == '.') {
    ++at;
    if (!read_number(format, at, arguments, c.precision)) return false;
  }
  while (at < format.size() && std::strchr("hljztLq", format[at]) != nullptr) {
    if (format[at] == 'h') ++c.narrow;
    else if (format[at] != 'L') c.wide = true;
    ++at;
  }
  c.letter = at < format.size() ? format[at++] : '\0';
  return true;
}

bool append_integer(const Conversion& c, ArgumentReader& arguments, std::string& text) {
  bool is_signed = c.letter == 'd' || c.letter == 'i';
  uint64_t value = 0;
  if (c.wide) {
    if (!arguments.next(value)) return false;
  } else {
    uint32_t given = 0;
    if (!arguments.next(given)) return false;
    if (c.narrow >= 2) given = is_signed ? static_cast<uint32_t>(static_cast<int8_t>(given)) : given & 0xff;
    if (c.narrow == 1) given = is_signed ? static_cast<uint32_t>(static_cast<int16_t>(given)) : given & 0xffff;
    value = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(given))) : given;
  }
  append(text, c, "ll", static_cast<unsigned long long>(value));
  return true;
}

bool append_converted(Warp& w, const Op& op, unsigned lane, const Conversion& c, ArgumentReader& arguments,
                      std::string& text) {
  switch (c.letter) {
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': return append_integer(c, arguments, text);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
    case 'a':
    case 'A': {
      double value = 0;
      if (!arguments.next(value)) return false;
      append(text, c, "", value);
      return true;
    }
    case 'c': {
      int32_t value = 0;
      if (!arguments.next(value)) return false;
      append(text, c, "", static_cast<int>(static_cast<unsigned char>(value)));
      return true;
    }
    case 'p': {
      uint64_t value = 0;
      if (!arguments.next(value)) return false;
      append(text, c, "", reinterpret_cast<void*>(static_cast<uintptr_t>(value)));
      return true;
    }
    case 's': {
      uint64_t address = 0;
      std::string string;
      if (!arguments.next(address)) return false;
      if (address == 0) string = "(null)";
      else if (!read_string(w, op, lane, address, string)) return false;
      append(text, c, "", string.c_str());
      return true;
    }
    default: return true;
  }
}

}  // namespace

bool format_message(Warp& w, const Op& op, unsigned lane, uint64_t format_address, uint64_t arguments_address,
                    std::string& text, int& converted) {
  std::string format;
  if (!read_string(w, op, lane, format_address, format)) return false;
  ArgumentReader arguments(w, op, lane, arguments_address);
  for (size_t at = 0; at < format.size();) {
    if (format[at] != '%') {
      text += format[at++];
      continue;
    }
    if (at + 1 < format.size() && format[at + 1] == '%') {
      text += '%';
      at += 2;
      continue;
    }
    size_t begin = at++;
    Conversion conversion;
    if (!parse_conversion(format, at, arguments, conversion)) return false;
    if (conversion.letter == '\0' || std::strchr("diuoxXfFeEgGaAcps", conversion.letter) == nullptr ||
        arguments.count() >= kArgumentsMax) {
      text.append(format, begin, at - begin);
      continue;
    }
    if (!append_converted(w, op, lane, conversion, arguments, text)) return false;
  }
  converted = arguments.count();
  return true;
}

}  // namespace gpuwire::software_device
