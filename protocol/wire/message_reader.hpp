// Reads the message of a frame in place, with limits, and converts Cap'n Proto's exceptions into the reason of a fault.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include <capnp/message.h>
#include <kj/exception.h>

namespace gpuwire::wire {

// How often a reader may go over the words of a message, in total, and how deep its structures may nest. A message that
// points to the same words again and again looks much longer than it is.
inline constexpr uint64_t kTraversalFactor = 4;
inline constexpr uint64_t kTraversalWordsMin = 512;
inline constexpr int kNestingMax = 16;

// A message of one segment. Borrows the words; an empty one reads as a structure of default values.
class SegmentReader final : public capnp::MessageReader {
 public:
  explicit SegmentReader(kj::ArrayPtr<const capnp::word> words);
  kj::ArrayPtr<const capnp::word> getSegment(unsigned id) override;

 private:
  kj::ArrayPtr<const capnp::word> words_;
};

// Runs `read`. Nothing: success; else the fault of the message, as one phrase. The only place where exceptions of Cap'n
// Proto are caught.
template <class Read>
std::optional<std::string> read_guarded(Read&& read);

// As above, but memory that ends (std::bad_alloc) leaves it: no message is to blame, and a process in whose place
// another one can go on ends by it, rather than that it mistrusts who wrote the message.
template <class Read>
std::optional<std::string> read_guarded_within_memory(Read&& read);

std::string describe_exception(std::exception_ptr thrown);

template <class Read>
std::optional<std::string> read_guarded(Read&& read) {
  try {
    read();
    return std::nullopt;
  } catch (...) {
    return describe_exception(std::current_exception());
  }
}

template <class Read>
std::optional<std::string> read_guarded_within_memory(Read&& read) {
  try {
    read();
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    return describe_exception(std::current_exception());
  }
}

}  // namespace gpuwire::wire
