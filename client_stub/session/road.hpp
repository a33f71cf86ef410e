// The channel of a session's bytes, and the objects that it carries beside them.
#pragma once

#include <cstdint>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// A session that has a connection of its own. Any thread.
class Road {
 public:
  // "tcp", "tls", "unix", "shm" or "rdma": the kind of the present connection.
  virtual const char* road_name() const = 0;
  // Further connections for bulk.
  struct Lanes {
    // The session's bound; below 2: none.
    unsigned most = 0;
    // The number of the last set.
    unsigned opened = 0;
    // The number that the last sent bulk used.
    unsigned in_use = 0;
    // The bytes of both directions.
    uint64_t bytes = 0;
  };
  virtual Lanes lanes() const noexcept = 0;
  // Passes a file descriptor to the server, before all bytes that are sent from now on; the frame that needs the
  // descriptor names it by `number`. The caller keeps its own. Returns false if the connection cannot carry
  // descriptors, or not at present. A descriptor that is lost with its connection is not sent again.
  virtual bool give_descriptor(uint64_t number, int descriptor) noexcept = 0;

 protected:
  ~Road() = default;
};

// Returns null if the session has none.
inline Road* road_of(Session& session) noexcept { return dynamic_cast<Road*>(&session); }

}  // namespace gpuwire::client
