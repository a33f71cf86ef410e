// The arguments of one call, as a sequence writes them, and what the call has left in them. The notation is in
// ../README.md.
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

// What a sequence has a name for: a handle, or an address with so many bytes behind it.
struct Slot {
  uint64_t value = 0;
  uint64_t bytes = 0;
  bool known = true;  // of memory: its contents follow from the sequence
};

class Slots {
 public:
  Slot& operator[](const std::string& name) { return slots_[name]; }
  void put(const std::string& name, Slot slot);
  // A value as it is the same in every run: 0, a slot's name, a place in a slot's memory, or that it is none of these.
  std::string describe(uint64_t value) const;

 private:
  std::map<std::string, Slot> slots_;
  std::vector<std::string> order_;  // of definition: a value has the name that it got first
};

// What a call has written, and how it is shown.
struct Output {
  std::string format;
  const std::byte* at = nullptr;
  std::string slot;  // of >: the name that the value gets when the call succeeds
  uint64_t slot_bytes = 0;
};

struct Argument {
  uint64_t word = 0;                 // the value itself, or the address of what it points to
  const std::byte* bytes = nullptr;  // of a structure: where it is, for parameters that are passed by value

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

// Parses one line's arguments. What they point to lives as long as this object.
class Arguments {
 public:
  Arguments(Slots& slots, std::string_view text);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  const std::vector<Argument>& all() const { return all_; }
  // A kernel would be given the address of nothing, because an allocation failed: when its fault would be told is
  // chance.
  bool would_fault() const { return would_fault_; }
  // Names what a successful call has given, and shows what it has written.
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
