#include "server/ipc/inventory.hpp"

#include <algorithm>
#include <cstring>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "server/ipc/session_spec.capnp.h"

namespace gpuwire::server {
namespace {

// 64 devices stay within kIpcMessageTextBytesMax.
constexpr size_t kDevicesMax = 64;
constexpr size_t kNameBytesMax = 96, kUuidBytesMax = 56, kSummaryBytesMax = 512;

}  // namespace

std::string encode(const Inventory& inventory) {
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<order::Inventory>();
  root.setSummary(inventory.summary.substr(0, kSummaryBytesMax));
  auto devices = root.initDevices(unsigned(std::min(inventory.devices.size(), kDevicesMax)));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setName(inventory.devices[i].name.substr(0, kNameBytesMax));
    devices[i].setUuid(inventory.devices[i].uuid.substr(0, kUuidBytesMax));
    devices[i].setBytes(inventory.devices[i].bytes);
    devices[i].setTakenBytes(inventory.devices[i].taken_bytes);
  }
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asBytes();
  return {bytes.asChars().begin(), bytes.size()};
}

tl::expected<Inventory, std::string> decode_inventory(const std::string& text) {
  std::vector<capnp::word> words(text.size() / sizeof(capnp::word));
  std::memcpy(words.data(), text.data(), words.size() * sizeof(capnp::word));
  try {
    capnp::FlatArrayMessageReader message({words.data(), words.size()});
    auto root = message.getRoot<order::Inventory>();
    Inventory inventory{.summary = root.getSummary()};
    for (auto device : root.getDevices()) {
      auto index = scheduler::DeviceIndex(inventory.devices.size());
      inventory.devices.push_back({.index = index,
                                   .bytes = device.getBytes(),
                                   .taken_bytes = device.getTakenBytes(),
                                   .name = device.getName(),
                                   .uuid = device.getUuid()});
    }
    return inventory;
  } catch (const kj::Exception& error) {
    return tl::unexpected(std::string(error.getDescription().cStr()));
  }
}

}  // namespace gpuwire::server
