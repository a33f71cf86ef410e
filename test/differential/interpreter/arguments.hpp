// The arguments of one call, in a sequence's notation (../README.md), and the values that the call has written to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace differential {

// A named value of a sequence: a handle, or an address with so many bytes behind it.
struct Slot {
  uint64_t value = 0;
  uint64_t bytes = 0;
  bool known = true;  // of memory: the sequence determines its contents
};

class Slots {
 public:
  Slot& operator[](const std::string& name) { return slots_[name]; }
  void put(const std::string& name, Slot slot);
  // Returns a description of the value that is the same in every run: 0, a slot's name, a place in a slot's memory, or
  // that it is none of these.
  std::string describe(uint64_t value) const;

 private:
  std::map<std::string, Slot> slots_;
  std::vector<std::string> order_;  // order of definition: a value has its first name
};

// An output of a call, and its format in the log.
struct Output {
  std::string format;
  const std::byte* at = nullptr;
  std::string slot;  // of >: the name of the value if the call succeeds
  uint64_t slot_bytes = 0;
};

struct Argument {
  uint64_t word = 0;                 // the value itself, or the address that it points to
  const std::byte* bytes = nullptr;  // of a structure: its address, for parameters that are passed by value

  template <class T>
  T as() const {
    if constexpr (std::is_pointer_v<T>) {
      return reinterpret_cast<T>(word);
    } else if constexpr (std::is_class_v<T> || std::is_union_v<T>) {
      T value{};
      if (bytes) std::memcpy(&value, bytes, sizeof value);
      return value;
    } else {
      return static_cast<T>(word);
    }
  }
};

// Parses one line's arguments. This object owns the memory that they point to.
class Arguments {
 public:
  Arguments(Slots& slots, std::string_view text);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  const std::vector<Argument>& all() const { return all_; }
  // A kernel would get a null address, because an allocation failed; the time of its fault would vary.
  bool would_fault() const { return would_fault_; }
  // Names the outputs of a successful call, and returns them as the log shows them.
  std::string finish(bool success);

 private:
  std::byte* storage(size_t bytes);
  void skip_spaces();
  bool take(char wanted);
  std::string word();
  uint64_t number(const std::string& text) const;
  Argument argument();
  Argument list();
  Argument parameters();
  Argument structure();
  Argument output();

  Slots& slots_;
  std::string_view text_;
  size_t at_ = 0;
  std::vector<Argument> all_;
  bool would_fault_ = false;
  std::vector<Output> outputs_;
  std::deque<std::unique_ptr<std::byte[]>> storages_;
};

}  // namespace differential
