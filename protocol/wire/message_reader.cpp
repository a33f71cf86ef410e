#include "protocol/wire/message_reader.hpp"

#include <algorithm>
#include <cstring>

#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::wire {

namespace {

capnp::ReaderOptions limits_for(size_t words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = std::max<uint64_t>(kTraversalWordsMin, words * kTraversalFactor);
  options.nestingLimit = kNestingMax;
  return options;
}

// A null root pointer.
const capnp::word kEmptyMessage[1] = {};

}  // namespace

SegmentReader::SegmentReader(kj::ArrayPtr<const capnp::word> words)
    : capnp::MessageReader(limits_for(words.size())), words_(words.size() ? words : kj::arrayPtr(kEmptyMessage, 1)) {}

kj::ArrayPtr<const capnp::word> SegmentReader::getSegment(unsigned id) { return id == 0 ? words_ : nullptr; }

std::string describe_exception(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const kj::Exception& error) {
    auto text = error.getDescription();
    std::string line = "bad message: " + std::string(text.begin(), std::find(text.begin(), text.end(), '\n'));
    blank_unshown(line);  // the text may quote bytes of the message
    return line;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace gpuwire::wire
