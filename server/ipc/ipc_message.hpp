// What a broker and a worker process say to each other, over a Unix socket pair of kind SOCK_SEQPACKET. Both are of one
// build, or of builds of the same kIpcMessageVersion: a broker may find workers that an older one has left (README.md).
// `stop` and `ended`, and the layout of a message, are the same in all versions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// Grows with every change of what is said, or of what it means.
inline constexpr uint32_t kIpcMessageVersion = 1;
// The descriptor on which a worker finds its end of the pair.
inline constexpr int kIpcMessageDescriptor = 3;
inline constexpr size_t kIpcMessageTextBytesMax = 16 * 1024;  // longer text is cut
inline constexpr size_t kIpcMessageDescriptorsMax = 8;        // in one message

enum class IpcMessageKind : uint32_t {
  ready = 1,    // worker: the driver is initialised; text: an Inventory (inventory.hpp)
  failed = 2,   // worker: it cannot be, text says why; the process ends
  session = 3,  // broker: a client's socket (attached), whose preface has been read; id; text: a SessionSpec
                // (session_spec.hpp), more: its descriptors
  begun = 4,    // worker: the handshake is done; text: who the client is
  ended = 5,    // worker: the session is over; number: EndCause; text: why. The process ends
  stop = 6,     // broker: end the session now; text: why
  note = 7,     // worker: a warning for the log
  // What sessions share (share_table.hpp); id: the token, number: the kind of share, text: the tenant.
  share = 8,          // worker: a descriptor (attached) to keep
  claim = 9,          // worker: asks for the one under this token
  withdraw = 10,      // worker: it is not shared any more
  share_answer = 11,  // broker: to share and claim; number: 1 for yes, then the claimed descriptor is attached
  warn = 12,          // broker: text, a line for the standard error of the client's program
  // More memory for the tenant (server/ipc/allowance_messages.hpp).
  memory_wanted = 13,  // worker: number: the column of the tenant's page; id: the question's number and the bytes
  memory_answer = 14,  // broker: id: the question; number: 1 when the allowance has been raised
  attach = 15,  // broker: a connection (attached) that is to carry the session on; text: the key of its TLS, or empty
  detached =
      16,  // worker: the session has lost its connection; number: for how many ms it stays without one; text: why
  attached = 17,        // worker: it has another one
  resume_refused = 18,  // worker: a connection was not the session's client's; text: why
  unattended = 19,      // the keeper, in the broker's place: there is no broker now
  adopted = 20,  // broker: another one than before; what was said last may not have been heard, and is said again
};

struct IpcMessage {
  IpcMessageKind kind = IpcMessageKind::failed;
  uint32_t number = 0;
  std::array<uint8_t, 16> id{};
  std::string text;
  OwnedDescriptor socket;  // or another descriptor, as the kind says
  std::vector<OwnedDescriptor>
      more;  // further ones, at most kIpcMessageDescriptorsMax with `socket`; only behind one in `socket`
};

// Both ends close on exec. False: errno says why.
bool open_ipc_message(OwnedDescriptor& broker, OwnedDescriptor& worker);
// Sends without waiting; false: the other end is gone, or has not read for long (the pair's buffer is full).
bool send_ipc_message(int descriptor, const IpcMessage& message);

enum class IpcMessageReceived : uint8_t { message, none_yet, closed };
// `wait`: blocks until there is a message or the end. A message that is not ours counts as closed.
IpcMessageReceived receive_ipc_message(int descriptor, bool wait, IpcMessage& message);

}  // namespace gpuwire::server
