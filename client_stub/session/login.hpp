// From a fresh connection to one on which a session can begin: prefaces, TLS, who the user is, the queue.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "client_stub/session/login_settings.hpp"
#include "client_stub/session/server_address.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/start_error.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

// How to enter a server. The default: without TLS, as nobody in particular.
struct Entry {
  std::string host;  // that the server's certificate has to be for, and that lines name
  bool encrypted = false;
  LoginSecrets secrets;
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  SessionKind kind = SessionKind::program;
  // The user's folder has an identity or a token, which was not looked at because the connection stays on this machine.
  bool identity_unused = false;
  bool shared_memory = false;  // wanted, where the server offers it
  enum class Rdma : uint8_t {
    no,
    where_it_is,  // where the server offers it and the plug-in is there
    wanted,       // a user asks for it, who is told why there is none
  } rdma = Rdma::no;
  // In and out: the client's place in the server's queue, which a server that is started again keeps for a while. Null:
  // nobody would come back to it.
  struct QueuePlace {
    std::string ticket;  // empty: it never had one
    bool held = false;   // it has waited there on this connection
  };
  QueuePlace* place = nullptr;
  std::string query;              // not empty: no session is wanted, but an answer (schema/login.capnp)
  std::string* answer = nullptr;  // where that goes
  std::string resume;             // the identity of the session that the connection is to carry on; empty: a new one
};

// Out of the address, the environment and where the connection has led. Errors: one phrase.
tl::expected<Entry, SessionStartError> plan_entry(const ServerAddress& address, const transport::Transport& connection,
                                                  SessionKind kind);

// Says how the queue moves, or that the session goes by a slower road than it might; one line, without "gpuwire:".
// Never called with a lock.
using QueueTold = void (*)(const std::string& line);

// Returns when the server has answered the query, null then, or has admitted the session: the next frame is the Hello.
// Each step has kHandshakeTimeoutMs; the place in the queue none, it lasts until the server admits or refuses or the
// connection ends. Errors that say `again`: the connection ended before the server had decided, or it had no room at
// that moment. Errors: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol version, CUDA_ERROR_NO_DEVICE, else
// CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> enter(
    std::unique_ptr<transport::Transport> connection, const Entry& entry, QueueTold told);

// How long a program has waited in the queue: "12 s", "3 min", "2 h 5 min".
std::string waited_text(std::chrono::seconds waited);

}  // namespace gpuwire::client
