#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "protocol/wire/message_reader.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"

using namespace gpuwire;
using namespace gpuwire::wire;

namespace {

std::vector<capnp::word> words_of(capnp::MessageBuilder& message) {
  auto segment = message.getSegmentsForOutput()[0];
  return {segment.begin(), segment.end()};
}

kj::ArrayPtr<const capnp::word> view(const std::vector<capnp::word>& words) {
  return kj::arrayPtr(words.data(), words.size());
}

// Structure pointer to `data` words and `pointers` pointers, `offset` words behind itself.
uint64_t struct_pointer(int32_t offset, uint16_t data, uint16_t pointers) {
  return uint64_t(uint32_t(offset) << 2) | uint64_t(data) << 32 | uint64_t(pointers) << 48;
}

template <class Read>
std::optional<std::string> read_raw(std::vector<uint64_t> raw, Read&& read) {
  std::vector<capnp::word> words(raw.size());
  std::memcpy(static_cast<void*>(words.data()), raw.data(), raw.size() * 8);
  return read_guarded([&] {
    SegmentReader reader(view(words));
    read(reader);
  });
}

}  // namespace

TEST_CASE("a message is read in place") {
  capnp::MallocMessageBuilder builder;
  auto launch = builder.initRoot<schema::Launch>();
  launch.setFunction(7);
  launch.setParameters(kj::arrayPtr(reinterpret_cast<const kj::byte*>("parameters"), 10));
  auto words = words_of(builder);
  SegmentReader reader(view(words));
  auto read = reader.getRoot<schema::Launch>();
  CHECK(read.getFunction() == 7);
  CHECK(read.getParameters().size() == 10);
  CHECK(static_cast<const void*>(read.getParameters().begin()) > words.data());
}

TEST_CASE("an empty message reads as default values") {
  auto bad = read_guarded([] {
    SegmentReader reader(nullptr);
    CHECK(reader.getRoot<schema::Launch>().getFunction() == 0);
    CHECK(reader.getRoot<schema::Welcome>().getDevices().size() == 0);
  });
  CHECK_FALSE(bad);
}

TEST_CASE("a message cut anywhere is read or refused, never beyond its end") {
  capnp::MallocMessageBuilder builder;
  auto welcome = builder.initRoot<schema::Welcome>();
  welcome.setDriverName("a driver with a name");
  auto devices = welcome.initDevices(3);
  for (auto device : devices) {
    device.setName("device");
    device.initAttributes(40);
  }
  auto words = words_of(builder);
  for (size_t length = 0; length < words.size(); ++length) {
    // A copy of its own, so that a sanitizer sees a step over the end.
    std::vector<capnp::word> cut(words.begin(), words.begin() + ptrdiff_t(length));
    auto bad = read_guarded([&] {
      SegmentReader reader(view(cut));
      auto root = reader.getRoot<schema::Welcome>();
      size_t sum = root.getDriverName().size();
      for (auto device : root.getDevices())
        for (int32_t value : device.getAttributes()) sum += size_t(value);
      CHECK(sum < 1000);
    });
    if (length == 0) CHECK_FALSE(bad);
    if (length == 1) CHECK(bad);
    if (bad) CHECK(bad->find("bad message: ") == 0);
  }
}

TEST_CASE("pointers out of the message or into other segments are refused") {
  auto read = [](SegmentReader& reader) { reader.getRoot<schema::Result>().getResult(); };
  CHECK_FALSE(read_raw({struct_pointer(0, 1, 0), 5}, read));
  CHECK(read_raw({struct_pointer(1, 1, 0), 5}, read));
  CHECK(read_raw({struct_pointer(-2, 1, 0), 5}, read));
  CHECK(read_raw({struct_pointer(0, 0xffff, 0xffff), 5}, read));
  CHECK(read_raw({0x0000000700000002, 5}, read));
  CHECK(read_raw({0x0000000000000003, 5}, read));
}

TEST_CASE("a small message cannot be made to look long") {
  // A list that claims 2^29 structures of no size, and lists of pointers to the same words again and again.
  auto walk = [](SegmentReader& reader) {
    uint64_t sum = 0;
    for (auto device : reader.getRoot<schema::Welcome>().getDevices()) sum += device.getTotalBytes();
    CHECK(sum == 0);
  };
  capnp::MallocMessageBuilder builder;
  builder.initRoot<schema::Welcome>().initDevices(1);
  auto words = words_of(builder);
  size_t devices_pointer = 0;
  std::vector<uint64_t> raw(words.size());
  std::memcpy(raw.data(), words.data(), raw.size() * 8);
  for (size_t i = 1; i < raw.size(); ++i)
    if ((raw[i] & 3) == 1 && (raw[i] >> 32 & 7) == 7) devices_pointer = i;
  REQUIRE(devices_pointer);
  size_t tag = devices_pointer + 1 + (uint32_t(raw[devices_pointer]) >> 2);
  REQUIRE(tag < raw.size());
  raw[tag] = uint64_t((1u << 29) - 1) << 2;  // elements of 0 words
  raw[devices_pointer] = (raw[devices_pointer] & 0xffffffff) | uint64_t(7) << 32;
  auto bad = read_raw(raw, walk);
  REQUIRE(bad);
  CHECK(bad->find("bad message") == 0);

  auto again = read_guarded([&] {
    SegmentReader reader(view(words));
    for (int i = 0; i < 1'000'000; ++i) reader.getRoot<schema::Welcome>().getDevices();
  });
  CHECK(again);
}

TEST_CASE("an error of a message is one line that does nothing to a terminal, whatever it quotes") {
  capnp::MallocMessageBuilder builder;
  builder.initRoot<schema::Hello>().setProgram("program");  // eight bytes with its end, which is taken away
  for (char end : {'\x1b', '\n', '\r', '\x7f', '\1'}) {
    auto words = words_of(builder);
    auto bytes = reinterpret_cast<char*>(words.data());
    auto program = std::search(bytes, bytes + words.size() * sizeof words[0], "program", "program" + 7);
    program[7] = end;
    auto bad = read_guarded([&] {
      SegmentReader reader(view(words));
      static_cast<void>(reader.getRoot<schema::Hello>().getProgram());
    });
    REQUIRE(bad);
    INFO(*bad);
    CHECK(std::none_of(bad->begin(), bad->end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }));
  }
}

TEST_CASE("nesting has a limit") {
  // A structure whose only pointer points to itself.
  auto bad = read_raw({struct_pointer(0, 0, 1), struct_pointer(-1, 0, 1)}, [](SegmentReader& reader) {
    auto pointer = reader.getRoot<capnp::AnyStruct>();
    for (int depth = 0; depth < 1000; ++depth) pointer = pointer.getPointerSection()[0].getAs<capnp::AnyStruct>();
  });
  REQUIRE(bad);
}

TEST_CASE("other exceptions end at the same place") {
  CHECK(*read_guarded([] { throw std::runtime_error("something else"); }) == "something else");
  CHECK(*read_guarded([] { throw 7; }) == "unknown exception");
  CHECK(*read_guarded([] { throw std::bad_alloc(); }) == "std::bad_alloc");
  CHECK(*read_guarded_within_memory([] { throw std::runtime_error("something else"); }) == "something else");
  CHECK_THROWS_AS(read_guarded_within_memory([] { throw std::bad_alloc(); }), std::bad_alloc);
}
