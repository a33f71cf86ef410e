// What the broker and the login process say to each other, as IpcMessage messages (server/ipc/ipc_message.hpp). Both
// are of one build.
#pragma once

#include <cstdint>
#include <string>

#include <tl/expected.hpp>

#include "server/ipc/ipc_message.hpp"

namespace gpuwire::server {

// Stands in IpcMessage::kind. A message that is about a connection carries its number (connection_of).
enum class LoginKind : uint32_t {
  // From the broker.
  identity = 1001,  // descriptors, in the order of IdentityFile: what clients are judged by from now on; without any:
                    // there is no TLS and no token
  arrival = 1002,   // a connection (attached) whose preface has been read; text: Arrival
  queued = 1003,    // text: LoginQueued; any number of times
  admitted = 1004,  // the client is told, and the connection comes back as `passed`
  refused = 1005,   // text: why
  // From the login process.
  identity_read = 1010,  // number: 1, or 0 and the text says why not, and what was there before stays
  request = 1011,        // text: LoginRequestMessage; the tenant is known
  gone = 1012,           // a connection for which there was a request has ended; text: why
  passed = 1013,  // after `admitted`: the bare connection (attached); text: the session key of kTlsKeyBytes, or empty
  turned_away = 1014,  // a connection that ended without a request; text: LoginRefusal, for the audit; number: others
                       // that were not told
};

enum class IdentityFile : uint8_t { authority, server_certificate, server_key, credentials, count };

using ConnectionId = uint64_t;

struct Arrival {
  std::string peer, address;
  bool tls = false;
  std::string unix_tenant, open_tenant;
  bool management = false;
};

struct LoginRequestMessage {
  std::string tenant, security, credential;
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  std::string program, host;
  uint32_t process_id = 0;
  std::string peer;  // these two as they arrived
  bool management = false;
  std::string resume;  // the wire identity of the session that this connection is to carry on; empty: a new one
  std::string ticket;  // of a place in the queue, which the client had before; or empty
};

struct LoginQueued {
  uint32_t place = 0, waiting = 0;
  std::string why, ticket;
};

// For the audit: `kind` is one of a few words (docs/monitoring.md).
struct LoginRefusal {
  std::string peer, kind, reason, tenant, credential;
};

IpcMessage login_message(LoginKind kind, ConnectionId connection, std::string text = {}, uint32_t number = 0);
LoginKind login_kind(const IpcMessage& message);
ConnectionId connection_of(const IpcMessage& message);

// For IpcMessage::text. Texts are cut so that each fits.
std::string encode(const Arrival& arrival);
std::string encode(const LoginRequestMessage& request);
std::string encode(const LoginQueued& queued);
std::string encode(const LoginRefusal& refusal);
// False: it cannot be read.
bool decode(const std::string& text, Arrival& arrival);
bool decode(const std::string& text, LoginRequestMessage& request);
bool decode(const std::string& text, LoginQueued& queued);
bool decode(const std::string& text, LoginRefusal& refusal);

}  // namespace gpuwire::server
