// Reads the message of a frame in place, with limits, and converts Cap'n Proto's exceptions to the reason of a fault.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include <capnp/message.h>
#include <kj/exception.h>

namespace gpuwire::wire {

// The factor limits how often a reader may visit the words of a message, in total, because a message that points to the
// same words repeatedly appears much longer than it is. The second limit is the nesting depth of structures.
inline constexpr uint64_t kTraversalFactor = 4;
inline constexpr uint64_t kTraversalWordsMin = 512;
inline constexpr int kNestingMax = 16;

// A message of one segment. Borrows the words. An empty message reads as a structure of default values.
class SegmentReader final : public capnp::MessageReader {
 public:
  explicit SegmentReader(kj::ArrayPtr<const capnp::word> words);
  kj::ArrayPtr<const capnp::word> getSegment(unsigned id) override;

 private:
  kj::ArrayPtr<const capnp::word> words_;
};

// Runs `read`. Returns nothing on success, else the fault of the message as one phrase. Only this function and the next
// catch exceptions of Cap'n Proto.
template <class Read>
std::optional<std::string> read_guarded(Read&& read);

// Like read_guarded(), but std::bad_alloc propagates, because it is not the message's fault: a process that can be
// replaced should end then, instead of blaming the sender of the message.
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
