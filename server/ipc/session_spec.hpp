// The broker's description of the session that a worker is to serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuwire::server {

struct SessionSpec {
  struct Device {
    uint32_t index = 0;        // of the server: which column of the tenant's page
    uint64_t limit_bytes = 0;  // the device's memory as the session sees it; 0: all of it
  };
  uint64_t number = 0;  // scheduler::SessionId
  std::string peer;     // for logs
  std::string tenant;   // name
  bool identified =
      false;  // the client has authenticated as the tenant: its shared objects have the tenant's name, not its key
  std::vector<Device> devices;  // as the worker's driver counts them; empty: all, without limits
  std::string
      tls_key;  // kTlsKeyBytes (limits.hpp), the pre-shared key of the connection's second handshake; empty: plain
  uint64_t host_memory_bytes = 0;  // of the server's own memory, that the tenant may hold; 0: no bound
  uint32_t resume_grace_ms = 0;    // how long the session stays without a connection; 0: it ends with its connection
  uint32_t hang_up_grace_ms =
      0;  // the same where the connection was ended and not lost, by the program's end or by something between
  uint32_t lanes_max = 0;       // further connections for bulk; below 2: none
  bool chunks_charged = false;  // the chunk store's memory counts as the tenant's already; else the session that fills
                                // it answers for it
  uint32_t ledger_slot = 0;     // which slot of the tenant's page is the session's
  uint64_t ledger_user = 0;     // whose it is in the tenant's page of users; 0: no particular user's
  uint64_t user_limit_bytes = 0;  // of each device, for this user's sessions together; 0: no bound but the tenant's
};

}  // namespace gpuwire::server
