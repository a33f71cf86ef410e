#include "server/ipc/session_spec.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "server/ipc/session_spec.capnp.h"

namespace gpuwire::server {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kDevicesMax = 64;

// What stands where nothing was attached, since descriptors travel without gaps.
constexpr const char* kNothing = "/dev/null";

bool is_nothing(int descriptor) {
  struct stat seen {
  }, nothing{};
  return ::fstat(descriptor, &seen) == 0 && ::stat(kNothing, &nothing) == 0 && S_ISCHR(seen.st_mode) &&
         seen.st_rdev == nothing.st_rdev;
}

}  // namespace

bool attach(IpcMessage& message, SpecDescriptor which, OwnedDescriptor descriptor) {
  if (which == SpecDescriptor::client) {
    message.socket = std::move(descriptor);
    return true;
  }
  size_t place = size_t(which) - 1;
  while (message.more.size() <= place) {
    OwnedDescriptor nothing(::open(kNothing, O_RDONLY | O_CLOEXEC));
    if (!nothing) return false;
    message.more.push_back(std::move(nothing));
  }
  message.more[place] = std::move(descriptor);
  return true;
}

OwnedDescriptor take(IpcMessage& message, SpecDescriptor which) {
  if (which == SpecDescriptor::client) return std::move(message.socket);
  size_t place = size_t(which) - 1;
  if (place >= message.more.size() || is_nothing(message.more[place].get())) return {};
  return std::move(message.more[place]);
}

std::string encode(const SessionSpec& order) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<order::SessionSpec>();
  root.setNumber(order.number);
  root.setPeer(order.peer.substr(0, kNameBytesMax));
  root.setTenant(order.tenant.substr(0, kNameBytesMax));
  auto devices = root.initDevices(unsigned(std::min(order.devices.size(), kDevicesMax)));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setIndex(order.devices[i].index);
    devices[i].setLimitBytes(order.devices[i].limit_bytes);
  }
  root.setTlsKey({reinterpret_cast<const kj::byte*>(order.tls_key.data()), order.tls_key.size()});
  root.setHostMemoryBytes(order.host_memory_bytes);
  root.setLedgerSlot(order.ledger_slot);
  root.setIdentified(order.identified);
  root.setResumeGraceMs(order.resume_grace_ms);
  root.setHangUpGraceMs(order.hang_up_grace_ms);
  root.setLanesMax(order.lanes_max);
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  return {bytes.asChars().begin(), bytes.size()};
}

tl::expected<SessionSpec, std::string> decode_session_spec(const std::string& text) {
  std::vector<capnp::word> words(text.size() / sizeof(capnp::word));
  std::memcpy(words.data(), text.data(), words.size() * sizeof(capnp::word));
  try {
    capnp::FlatArrayMessageReader message({words.data(), words.size()});
    auto root = message.getRoot<order::SessionSpec>();
    SessionSpec order{.number = root.getNumber(), .peer = root.getPeer(), .tenant = root.getTenant()};
    for (auto device : root.getDevices()) order.devices.push_back({device.getIndex(), device.getLimitBytes()});
    auto key = root.getTlsKey().asChars();
    order.tls_key.assign(key.begin(), key.size());
    if (!order.tls_key.empty() && order.tls_key.size() != kTlsKeyBytes)
      return tl::unexpected(fmt::format("a TLS key of {} bytes", order.tls_key.size()));
    order.host_memory_bytes = root.getHostMemoryBytes();
    order.ledger_slot = root.getLedgerSlot();
    order.identified = root.getIdentified();
    order.resume_grace_ms = root.getResumeGraceMs();
    order.hang_up_grace_ms = root.getHangUpGraceMs();
    order.lanes_max = root.getLanesMax();
    return order;
  } catch (const kj::Exception& error) {
    return tl::unexpected(std::string(error.getDescription().cStr()));
  }
}

}  // namespace gpuwire::server
