// SuspensionMemory is the view that suspensions have of the ledger: the memory that a suspended session releases, and
// takes again when it returns.
#pragma once

#include <cstdint>
#include <string>

#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// The broker's thread only.
class SuspensionMemory {
 public:
  // Returns why the session's memory must stay on the devices; empty: it may be released.
  virtual std::string why_not_released(const SessionRecord& session) const = 0;
  // Returns the bytes that release_memory() would release, over all devices.
  virtual uint64_t releasable_bytes(const SessionRecord& session) const = 0;
  // The session's memory on all its devices is with the host: other sessions may take it. Returns its bytes over all
  // devices.
  virtual uint64_t release_memory(const SessionRecord& session) = 0;
  // Takes the released memory again, on all devices or on none. Returns false if there is too little free memory now.
  virtual bool take_memory(const SessionRecord& session) = 0;

 protected:
  ~SuspensionMemory() = default;
};

}  // namespace gpuwire::server
