#include "server/ipc/codec.hpp"

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

#include <capnp/dynamic.h>
#include <capnp/message.h>
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "server/ipc/messages.capnp.h"
#include "test/server/ipc/messages.hpp"

using namespace gpuwire::server;
using namespace gpuwire::server::ipc;

namespace {

constexpr Speaker kSpeakers[] = {Speaker::worker, Speaker::broker, Speaker::auth_server, Speaker::keeper,
                                 Speaker::suspender};

std::vector<std::byte> bytes_of(Message& message) {
  Packet packet = encode(message);
  return {packet.bytes().begin(), packet.bytes().end()};
}

// Returns the descriptors as a receiver would get them.
std::vector<OwnedDescriptor> copies_of(Message& message) {
  std::vector<OwnedDescriptor> copies;
  for (OwnedDescriptor* descriptor : encode(message).descriptors) copies.emplace_back(::dup(descriptor->get()));
  return copies;
}

// Fields of shared structures that one of the messages does not use.
const std::map<std::string, std::set<std::string>> kUnused{{"claim", {"descriptor"}},
                                                           {"rewrite", {"session", "descriptors", "awaited"}}};

// Checks that each field, nested ones included, has a value other than its default.
void check_filled(const capnp::DynamicValue::Reader& value, const std::set<std::string>& unused) {
  switch (value.getType()) {
    case capnp::DynamicValue::BOOL: CHECK(value.as<bool>()); break;
    case capnp::DynamicValue::UINT: CHECK(value.as<uint64_t>() != 0); break;
    case capnp::DynamicValue::TEXT: CHECK(value.as<capnp::Text>().size() > 0); break;
    case capnp::DynamicValue::DATA: CHECK(value.as<capnp::Data>().size() > 0); break;
    case capnp::DynamicValue::LIST:
      CHECK(value.as<capnp::DynamicList>().size() > 0);
      for (const auto& element : value.as<capnp::DynamicList>()) {
        if (element.getType() == capnp::DynamicValue::STRUCT) check_filled(element, unused);
      }
      break;
    case capnp::DynamicValue::STRUCT: {
      const auto structure = value.as<capnp::DynamicStruct>();
      for (auto field : structure.getSchema().getNonUnionFields()) {
        const std::string name = field.getProto().getName().cStr();
        CAPTURE(name);
        if (!unused.contains(name)) check_filled(structure.get(field), unused);
      }
      break;
    }
    default: CHECK(value.getType() == capnp::DynamicValue::VOID);
  }
}

}  // namespace

TEST_CASE("every field of a message is written") {
  for (auto& [by, message] : test::one_of_each()) {
    const Packet packet = encode(message);
    const kj::ArrayPtr<const capnp::word> segments[] = {packet.words};
    capnp::SegmentArrayMessageReader reader(segments);
    const capnp::DynamicStruct::Reader root = reader.getRoot<ipc_schema::Message>();
    const auto which = KJ_ASSERT_NONNULL(root.which());
    const std::string name = which.getProto().getName().cStr();
    CAPTURE(name);
    const auto unused = kUnused.find(name);
    check_filled(root.get(which), unused == kUnused.end() ? std::set<std::string>() : unused->second);
  }
}

TEST_CASE(
    "every kind of message arrives as it was sent, with its descriptors, from who may say it and from nobody else") {
  std::set<size_t> kinds;
  for (auto& [by, message] : test::one_of_each()) {
    CAPTURE(message.index());
    kinds.insert(message.index());
    const auto bytes = bytes_of(message);
    for (Speaker speaker : kSpeakers) {
      auto decoded = decode(bytes, copies_of(message), speaker);
      CHECK(decoded.has_value() == (speaker == by));
      if (!decoded) continue;
      CHECK(decoded->index() == message.index());
      // All fields but the descriptors' identity: they are encoded to the same words.
      CHECK(bytes_of(*decoded) == bytes);
      CHECK(encode(*decoded).descriptors.size() == encode(message).descriptors.size());
    }
  }
  CHECK(kinds.size() == std::variant_size_v<Message>);
}

TEST_CASE("descriptors are found at their places, and those left out are none") {
  Message sent = Serve{{}, {}, {test::a_descriptor(), {}, {}, test::a_descriptor()}};
  auto copies = copies_of(sent);
  const int client = copies[0].get(), page = copies[1].get();
  auto got = decode(bytes_of(sent), std::move(copies), Speaker::broker);
  REQUIRE(got);
  SessionDescriptors& descriptors = std::get<Serve>(*got).descriptors;
  CHECK(descriptors.client.get() == client);
  CHECK_FALSE(descriptors.session_page);
  CHECK_FALSE(descriptors.doorbell);
  CHECK(descriptors.tenant_page.get() == page);
}

TEST_CASE("a descriptor that the kernel had no room for is none, and the others stay open for nobody") {
  Message sent = Passed{5, test::a_descriptor(), {}};
  auto got = decode(bytes_of(sent), {}, Speaker::auth_server);
  REQUIRE(got);
  CHECK_FALSE(std::get<Passed>(*got).socket);
  Message without = Note{"a line"};
  std::vector<OwnedDescriptor> more;
  more.push_back(test::a_descriptor());
  const int number = more.front().get();
  REQUIRE(decode(bytes_of(without), std::move(more), Speaker::worker));
  struct stat facts {};
  CHECK(::fstat(number, &facts) != 0);
}

TEST_CASE("texts are cut so that each fits, and what is at its longest is one packet") {
  const std::string long_text(100'000, 'x');
  Message note = Note{long_text};
  auto got = decode(bytes_of(note), {}, Speaker::worker);
  REQUIRE(got);
  CHECK(std::get<Note>(*got).text.size() == kTextBytesMax);
  Inventory inventory{long_text, {}};
  for (size_t i = 0; i < 2 * kDevicesMax; ++i) inventory.devices.push_back({.name = long_text, .uuid = long_text});
  Message ready = Ready{inventory};
  CHECK(bytes_of(ready).size() <= kPacketBytesMax);
  CHECK(decode(bytes_of(ready), {}, Speaker::worker));
  Message put =
      Put{{.session = true, .name = long_text, .text = std::string(kEntryTextBytesMax, 't'), .descriptors = {}}};
  CHECK(bytes_of(put).size() <= kPacketBytesMax);
  CHECK(decode(bytes_of(put), {}, Speaker::broker));
}

TEST_CASE("an impossible message is refused in words") {
  Message claim = Claim{1, {}, 2, "anna"};
  auto bytes = bytes_of(claim);
  auto refused = [](std::span<const std::byte> said) {
    auto decoded = decode(said, {}, Speaker::worker);
    return decoded ? std::string() : decoded.error();
  };
  CHECK(refused({}) == "what cannot be: 0 bytes");
  CHECK(refused(std::span(bytes).first(bytes.size() - 1)).find("bytes") != std::string::npos);
  CHECK(refused(std::vector<std::byte>(kPacketBytesMax + 8)).find("bytes") != std::string::npos);
  CHECK(refused(std::vector<std::byte>(64, std::byte(0xff))).find("bad message") != std::string::npos);
  Message stop = Stop{"mine to say?"};
  CHECK(refused(bytes_of(stop)) == "what cannot be: a message of kind 13");
}

TEST_CASE("no bytes do harm, whoever says them") {
  constexpr uint64_t kSeed = 4711;
  std::mt19937_64 random(kSeed);
  INFO("seed ", kSeed);
  for (auto& [by, message] : test::one_of_each()) {
    const auto bytes = bytes_of(message);
    for (int round = 0; round < 300; ++round) {
      auto changed = bytes;
      for (size_t i = 1 + random() % 4; i > 0; --i) changed[random() % changed.size()] = std::byte(random());
      for (Speaker speaker : kSpeakers) static_cast<void>(decode(changed, copies_of(message), speaker));
    }
  }
}
