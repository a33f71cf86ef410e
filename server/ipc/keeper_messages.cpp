#include "server/ipc/keeper_messages.hpp"

#include <utility>

#include <fcntl.h>

namespace gpuwire::server {
namespace {

constexpr uint8_t kIsSession = 1, kIsAwaited = 2;

}  // namespace

IpcMessage keeper_message(KeeperKind kind, uint32_t number, std::string text) {
  IpcMessage message;
  message.kind = IpcMessageKind(kind);
  message.number = number;
  message.text = std::move(text);
  return message;
}

KeeperKind keeper_kind(const IpcMessage& message) { return KeeperKind(message.kind); }

OwnedDescriptor nothing() { return OwnedDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// The name stands in front of the text; its length is the message's number.
IpcMessage entry_message(KeeperKind kind, KeptEntry entry) {
  IpcMessage message = keeper_message(kind, uint32_t(entry.name.size()), entry.name + entry.text);
  // A keeper that does not know of the second takes it for a session whose worker lives, and waits as well.
  message.id[0] = entry.session ? kIsSession : entry.awaited ? kIsAwaited : 0;
  for (OwnedDescriptor& descriptor : entry.descriptors) {
    if (!message.socket) message.socket = std::move(descriptor);
    else message.more.push_back(std::move(descriptor));
  }
  return message;
}

std::optional<KeptEntry> entry_of(IpcMessage message) {
  if (message.number > message.text.size()) return std::nullopt;
  KeptEntry entry{.session = message.id[0] == kIsSession,
                  .awaited = message.id[0] == kIsAwaited,
                  .name = message.text.substr(0, message.number),
                  .text = message.text.substr(message.number),
                  .descriptors = {}};
  if (message.socket) entry.descriptors.push_back(std::move(message.socket));
  for (OwnedDescriptor& more : message.more) entry.descriptors.push_back(std::move(more));
  return entry;
}

}  // namespace gpuwire::server
