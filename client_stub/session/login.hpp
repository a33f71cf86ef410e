// The steps from a new connection to one on which a session can begin: prefaces, TLS, authentication, the queue.
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

// How to enter a server. The default: without TLS, anonymously.
struct Entry {
  // The name in the server's certificate, and in lines.
  std::string host;
  bool encrypted = false;
  // Never null.
  std::shared_ptr<const LoginSecrets> secrets = std::make_shared<LoginSecrets>();
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  // Empty: any.
  std::string gpu_type;
  SessionKind kind = SessionKind::program;
  // The user's folder has an identity or a token that was not read, because the connection stays on this machine.
  bool identity_unused = false;
  // Used if the server offers it.
  bool shared_memory = false;
  enum class Rdma : uint8_t {
    no,
    where_it_is,  // if the server offers it and the plug-in is installed
    wanted,       // the user requests it, and gets the reason if it is unavailable
  } rdma = Rdma::no;
  // In and out: the client's place in the server's queue, which a restarted server keeps for a while. Null: the client
  // would not return to it.
  struct QueuePlace {
    // Empty: there was none.
    std::string ticket;
    // The client has waited there on this connection.
    bool held = false;
    // The begin of the wait, over all connections.
    std::optional<std::chrono::steady_clock::time_point> since;
  };
  QueuePlace* place = nullptr;
  // For GPUs, in the server's queue; otherwise that is an error.
  bool waits = true;
  // Not empty: a query instead of a session (schema/login.capnp).
  std::string query;
  // The query's answer.
  std::string* answer = nullptr;
  // The bound of one call's answer.
  std::chrono::seconds answer_time_max = kAnswerTimeMax;
  // The identity of the session that the connection resumes; empty: a new one.
  std::string resume;
};

// Plans the entry from the address, the environment and the connection's peer. Errors: one phrase.
tl::expected<Entry, SessionStartError> plan_entry(const ServerAddress& address, const transport::Transport& connection,
                                                  SessionKind kind);

// The client warns of the end of a certificate or token from this time before it.
inline constexpr std::chrono::hours kExpiryNotice{14 * 24};

// Reports the queue's progress, the approaching end of the user's identity, or a slower connection than possible: one
// line, without "gpuwire:". Lock: none.
using QueueNotice = void (*)(const std::string& line);

// Returns the connection when the server has admitted the session, whose next frame is the Hello; null when the server
// has answered the query. Each step has kHandshakeTimeoutMs; the wait in the queue has no limit and lasts until the
// server admits or refuses, or the connection ends. Errors with `again`: the connection ended before the server's
// decision, or the server had no room at that moment. Errors: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol
// version, CUDA_ERROR_NO_DEVICE, otherwise CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> enter(
    std::unique_ptr<transport::Transport> connection, const Entry& entry, QueueNotice told);

// How long a program has waited in the queue: "12 s", "3 min", "2 h 5 min".
std::string waited_text(std::chrono::seconds waited);

}  // namespace gpuwire::client
