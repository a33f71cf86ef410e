// An entry that a keeper stores for a broker.
#pragma once

#include <string>
#include <vector>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// A text that only brokers interpret, and descriptors. KeptDescriptor lists those of a session.
struct KeptEntry {
  bool session = false;
  // A keeper waits for the next broker for its sake alone.
  bool awaited = false;
  std::string name, text;
  std::vector<OwnedDescriptor> descriptors;
};
// A session's entry has all of these; a missing one is empty.
enum class KeptDescriptor : uint8_t { worker, process, session_page, doorbell };
inline constexpr size_t kKeptDescriptors = 4;

}  // namespace gpuwire::server
