// The broker's description of the session that a worker is to serve.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuwire::server {

struct SessionSpec {
  struct Device {
    // The device's index at the server, and its column in the tenant's page.
    uint32_t index = 0;
    // The device's memory as the session sees it; 0: all of it.
    uint64_t limit_bytes = 0;
  };
  // The scheduler::SessionId.
  uint64_t number = 0;
  // For logs.
  std::string peer;
  // The tenant's name.
  std::string tenant;
  // The client has authenticated as the tenant: its shared objects have the tenant's name, not the key of the client.
  bool identified = false;
  // The devices in the order of the worker's driver; empty: all devices, without limits.
  std::vector<Device> devices;
  // The pre-shared key of the connection's second handshake, of kTlsKeyBytes (limits.hpp); empty: the connection is
  // plain.
  std::string tls_key;
  // The server's own memory that the tenant may hold; 0: no bound.
  uint64_t host_memory_bytes = 0;
  // The time for which the session stays without a connection. With 0 it ends with its connection.
  uint32_t resume_grace_ms = 0;
  // The same time after a connection that was closed and not lost, by the program's end or by something between.
  uint32_t hang_up_grace_ms = 0;
  // Further connections for bulk; below 2: none.
  uint32_t lanes_max = 0;
  // The tenant is charged for the chunk store's memory already. Otherwise the session that fills the store is charged.
  bool chunks_charged = false;
  // The session's slot in the tenant's page.
  uint32_t ledger_slot = 0;
  // The session's user in the tenant's page of users; 0: no particular user.
  uint64_t ledger_user = 0;
  // The bound of each device's memory for this user's sessions together; 0: no bound but the tenant's.
  uint64_t user_limit_bytes = 0;
  // The worker serves large allocations from memory that a suspension moves by itself (server/driver/evictable).
  bool evicts = false;
};

}  // namespace gpuwire::server
