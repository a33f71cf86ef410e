// Encodes messages as packets, and decodes untrusted packets.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <capnp/common.h>
#include <kj/array.h>
#include <tl/expected.hpp>

#include "server/ipc/limits.hpp"
#include "server/ipc/message.hpp"

namespace gpuwire::server::ipc {

// The sender of a message. A process may send only its own messages.
enum class Speaker : uint8_t { worker, broker, auth_server, keeper, suspender };

struct Packet {
  kj::Array<capnp::word> words;
  // The message's own, which stay there.
  std::vector<OwnedDescriptor*> descriptors;

  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(words.begin()), words.asBytes().size()};
  }
};

// Encodes a message. Too long texts are cut.
Packet encode(Message& message);

// Copies the packet, checks every field, and takes the descriptors that the message refers to; it closes other
// descriptors, and a missing one is empty. The error describes the invalid field.
tl::expected<Message, std::string> decode(std::span<const std::byte> bytes, std::vector<OwnedDescriptor> descriptors,
                                          Speaker speaker);

}  // namespace gpuwire::server::ipc
