// The channel of a session's bytes, and the objects that it carries beside them.
#pragma once

#include <cstdint>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// A session that has a connection of its own. Any thread.
class Road {
 public:
  // "tcp", "tls", "unix", "shm" or "rdma": of the connection of the moment.
  virtual const char* road_name() const = 0;
  // Further connections for bulk.
  struct Lanes {
    unsigned most = 0;    // that the session may have; below 2: none
    unsigned opened = 0;  // the last ones that there were
    unsigned in_use = 0;  // of them, by the last bulk that was sent
    uint64_t bytes = 0;   // that have passed them, both ways
  };
  virtual Lanes lanes() const noexcept = 0;
  // Gives the server a file descriptor, before all bytes that are sent from now on; the frame that needs the descriptor
  // names it by `number`. The caller keeps its own. False: the connection cannot carry descriptors, or not at present.
  // A descriptor that is lost with its connection is not given again automatically.
  virtual bool give_descriptor(uint64_t number, int descriptor) noexcept = 0;

 protected:
  ~Road() = default;
};

// Null: the session has none.
inline Road* road_of(Session& session) noexcept { return dynamic_cast<Road*>(&session); }

}  // namespace gpuwire::client
