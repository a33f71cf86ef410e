// The steps from a fresh connection to one on which a session can begin: prefaces, TLS, authentication, the queue.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
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
  std::shared_ptr<const LoginSecrets> secrets = std::make_shared<LoginSecrets>();  // never null
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  std::string gpu_type;  // empty: any
  SessionKind kind = SessionKind::program;
  // The user's folder has an identity or a token, which was not looked at because the connection stays on this machine.
  bool identity_unused = false;
  bool shared_memory = false;  // wanted, where the server offers it
  enum class Rdma : uint8_t {
    no,
    where_it_is,  // where the server offers it and the plug-in is there
    wanted,       // a user asks for it, and gets the reason if there is none
  } rdma = Rdma::no;
  // In and out: the client's place in the server's queue, which a server that is started again keeps for a while. Null:
  // nobody would come back to it.
  struct QueuePlace {
    std::string ticket;                                          // empty: it never had one
    bool held = false;                                           // it has waited there on this connection
    std::optional<std::chrono::steady_clock::time_point> since;  // it waits, over all its connections
  };
  QueuePlace* place = nullptr;
  bool waits = true;              // for GPUs, in the server's queue; else that is an error
  std::string query;              // not empty: no session is wanted, but an answer (schema/login.capnp)
  std::string* answer = nullptr;  // where that goes
  std::chrono::seconds answer_time_max = kAnswerTimeMax;  // of one call
  std::string resume;  // the identity of the session that the connection is to carry on; empty: a new one
};

// Out of the address, the environment and where the connection has led. Errors: one phrase.
tl::expected<Entry, SessionStartError> plan_entry(const ServerAddress& address, const transport::Transport& connection,
                                                  SessionKind kind);

// The client announces the end of a certificate or token from this long before it.
inline constexpr std::chrono::hours kExpiryNotice{14 * 24};

// Says how the queue moves, that the user's identity ends soon, or that the session goes by a slower road than it
// might; one line, without "gpuwire:". Never called with a lock.
using QueueNotice = void (*)(const std::string& line);

// Returns null when the server has answered the query, or a result when it has admitted the session: the next frame is
// the Hello. Each step has kHandshakeTimeoutMs; the wait in the queue has no limit and lasts until the server admits or
// refuses, or the connection ends. Errors with `again`: the connection ended before the server's decision, or the
// server had no room at that moment. Errors: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol version,
// CUDA_ERROR_NO_DEVICE, otherwise CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> enter(
    std::unique_ptr<transport::Transport> connection, const Entry& entry, QueueNotice told);

// How long a program has waited in the queue: "12 s", "3 min", "2 h 5 min".
std::string waited_text(std::chrono::seconds waited);

}  // namespace gpuwire::client
