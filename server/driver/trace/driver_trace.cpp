#include "server/driver/trace/driver_trace.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "server/driver_table_entries.hpp"

namespace gpuwire::server {
namespace {

using TraceClock = std::chrono::steady_clock;

// A driver function has no argument to pass it in. Written before the table is changed.
DriverTrace* trace = nullptr;

// A line in the making; what exceeds its room is left out.
class TraceLine {
 public:
  explicit TraceLine(const char* function) noexcept {
    number(static_cast<uint64_t>(::gettid()), kDecimal);
    text(" ");
    text(function);
  }

  template <class Argument>
  void argument(const Argument& given) noexcept {
    if constexpr (std::is_pointer_v<Argument>) {
      hexadecimal(reinterpret_cast<uintptr_t>(given));
    } else if constexpr (std::is_enum_v<Argument>) {
      argument(static_cast<std::underlying_type_t<Argument>>(given));
    } else if constexpr (std::is_integral_v<Argument>) {
      hexadecimal(static_cast<std::make_unsigned_t<Argument>>(given));
    } else {
      bytes(&given, sizeof given);
    }
  }

  // Returns the whole line.
  std::string_view end(CUresult result, std::chrono::nanoseconds time) noexcept {
    constexpr uint64_t kNanosecondsPerMicrosecond = 1000;
    const auto nanoseconds = static_cast<uint64_t>(time.count());
    text(" = ");
    number(static_cast<uint64_t>(result), kDecimal);
    text(" ");
    number(nanoseconds / kNanosecondsPerMicrosecond, kDecimal);
    const uint64_t rest = nanoseconds % kNanosecondsPerMicrosecond;
    text(rest < 10 ? ".00" : rest < 100 ? ".0" : ".");
    number(rest, kDecimal);
    room_[used_++] = '\n';
    return {room_.data(), used_};
  }

 private:
  static constexpr int kDecimal = 10, kHexadecimal = 16;
  static constexpr size_t kLineBytesMax = 2048;

  void text(std::string_view more) noexcept {
    const size_t fitting = std::min(more.size(), kLineBytesMax - 1 - used_);  // the end of the line always fits
    std::memcpy(room_.data() + used_, more.data(), fitting);
    used_ += fitting;
  }
  void number(uint64_t value, int base) noexcept {
    std::array<char, 20> digits;
    const auto written = std::to_chars(digits.begin(), digits.end(), value, base);
    text({digits.data(), written.ptr});
  }
  void hexadecimal(uint64_t value) noexcept {
    text(" 0x");
    number(value, kHexadecimal);
  }
  void bytes(const void* data, size_t count) noexcept {
    constexpr char kDigits[] = "0123456789abcdef";
    text(" {");
    for (size_t i = 0; i < count; ++i) {
      const unsigned byte = static_cast<const unsigned char*>(data)[i];
      const char pair[] = {kDigits[byte / 16], kDigits[byte % 16]};
      text({pair, sizeof pair});
    }
    text("}");
  }

  std::array<char, kLineBytesMax> room_;
  size_t used_ = 0;
};

// The function that stands in the table for the one of an entry.
template <auto Entry>
struct Traced;
template <class... Arguments, CUresult (CUDAAPI* DriverTable::*Entry)(Arguments...)>
struct Traced<Entry> {
  static inline const char* name = "";

  static CUresult CUDAAPI call(Arguments... arguments) {
    const TraceClock::time_point begin = TraceClock::now();
    const CUresult result = (trace->driver().*Entry)(arguments...);
    const TraceClock::duration time = TraceClock::now() - begin;
    TraceLine line(name);
    (line.argument(arguments), ...);
    trace->write(line.end(result, time));
    return result;
  }
};

}  // namespace

tl::expected<std::unique_ptr<DriverTrace>, std::string> DriverTrace::create(const std::string& file) {
  const std::string path = file + "." + std::to_string(::getpid());
  constexpr mode_t kOwnerOnly = 0600;
  OwnedDescriptor made(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, kOwnerOnly));
  if (!made) return tl::unexpected("the trace " + path + " cannot be made: " + std::strerror(errno));
  return std::unique_ptr<DriverTrace>(new DriverTrace(std::move(made)));
}

void DriverTrace::put_before(DriverTable& table) {
  driver_ = table;
  trace = this;
  for_each_entry([&]<auto Entry>(const char* name) {
    Traced<Entry>::name = name;
    if (table.*Entry) table.*Entry = &Traced<Entry>::call;
  });
}

void DriverTrace::write(std::string_view line) const noexcept {
  // A full disk costs lines, not the session.
  [[maybe_unused]] const ssize_t written = ::write(file_.get(), line.data(), line.size());
}

}  // namespace gpuwire::server
