// What a broker and its keeper (../keeper) say to each other. A keeper outlives the broker that started it and may
// serve one of another release, so none of this changes its meaning or its layout; kKeeperVersion grows when it has to.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/ipc/ipc_message.hpp"

namespace gpuwire::server {

inline constexpr uint32_t kKeeperVersion = 1;
inline constexpr size_t kKeeperKeyBytes = 32;

// The kind of a IpcMessage between the two.
enum class KeeperKind : uint32_t {
  hello = 0x4b01,  // broker, first: number: kKeeperVersion; text: the key that shows who it is. The first hello of all
                   // says what the key is
  settings = 0x4b02,  // broker: number: for how many ms sessions stay without a broker
  put = 0x4b03,       // broker: an entry, in the place of the one of this name
  note = 0x4b04,      // broker: another text for the entry of this name, if there is one
  remove = 0x4b05,    // broker: the entry of this name
  give = 0x4b06,      // broker: wants all entries; they stay kept
  entry = 0x4b07,     // keeper: one of them
  given = 0x4b08,     // keeper: these were all
};

// What a keeper keeps: a text that only brokers understand, and descriptors. Those of a session: KeptDescriptor.
struct KeptEntry {
  bool session = false;
  bool awaited = false;  // a keeper waits for the next broker for its sake alone
  std::string name, text;
  std::vector<OwnedDescriptor> descriptors;
};
// Where a session has none of one sort, nothing() stands.
enum class KeptDescriptor : uint8_t { worker, process, session_page, doorbell };
inline constexpr size_t kKeptDescriptors = 4;
OwnedDescriptor nothing();

IpcMessage keeper_message(KeeperKind kind, uint32_t number = 0, std::string text = {});
KeeperKind keeper_kind(const IpcMessage& message);
// Of put, note, remove, entry. The descriptors move.
IpcMessage entry_message(KeeperKind kind, KeptEntry entry);
// Nothing: it is none.
std::optional<KeptEntry> entry_of(IpcMessage message);

}  // namespace gpuwire::server
