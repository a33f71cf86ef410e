// A real gpuwire-login, with the test as its broker, and clients that send the test's bytes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <openssl/ssl.h>
#include <sys/types.h>

#include "protocol/tls/openssl.hpp"
#include "protocol/tls/token_challenge.hpp"
#include "protocol/wire/frame.hpp"
#include "server/identity/administration.hpp"
#include "server/ipc/channel.hpp"
#include "test/support/temporary_directory.hpp"

namespace gpuwire::test {

// An identity folder, made by the functions of `gpuwire admin`.
class Lab {
 public:
  Lab();
  const std::filesystem::path& path() const { return path_; }
  // `age_days`: its age; with fewer `days` it has expired.
  server::NewCredential certificate(const std::string& tenant, unsigned days = 30, unsigned age_days = 0) const;
  server::NewCredential token(const std::string& tenant, unsigned days = 30, unsigned age_days = 0) const;
  std::string file(std::string_view name) const;

 private:
  TemporaryDirectory temporary_;
  std::filesystem::path path_;
};

// Returns the token's line of a token file.
std::string token_in(const server::NewCredential& made);

// The TLS parameters of a client.
struct ClientTls {
  std::string authority;  // PEM
  std::string bundle;     // key and certificate, or empty
  int version_max = TLS1_3_VERSION;
};

// Returns the TLS parameters with this certificate; without TLS, nothing.
std::optional<ClientTls> shown(bool tls, const server::NewCredential& certificate);

class LoginClient {
 public:
  explicit LoginClient(int socket);
  ~LoginClient();
  LoginClient(LoginClient&&) noexcept;
  LoginClient& operator=(LoginClient&&) = delete;

  int socket() const { return socket_; }
  void close();
  bool send(std::string_view bytes);       // inside TLS, if the client uses TLS
  bool send_bare(std::string_view bytes);  // on the socket itself
  std::string read_bare(size_t bytes);
  // Returns the server's preface; nothing: the connection ended.
  std::optional<wire::Preface> read_preface();
  // Returns the error; empty: success.
  std::string handshake(const ClientTls& with);
  void send_login(const std::string& token = {}, unsigned gpus = 0);
  // Names the token, and shows it once the server has proven that it knows it; `spoilt`: with one wrong bit. Returns
  // the error in answer()'s form; empty: success.
  std::string show_token(const std::string& token, bool spoilt = false);
  // Returns "admitted", "queued 1 of 2: why", "refused: why", or "closed: why".
  std::string answer();
  // Sends preface, TLS if wanted, and login.
  std::string log_in(const std::optional<ClientTls>& with, const std::string& token = {});
  std::string exported_key();
  bool closed_by_server();

 private:
  bool read_exactly(std::span<std::byte> out, std::string& why);

  bool challenged_ = false;  // the last answer was a challenge
  tls::TokenNonce server_nonce_{};
  tls::TokenProof server_proof_{};
  int socket_;
  tls::Context context_;
  tls::Connection tls_;
};

class LoginProcessFixture {
 public:
  // Starts the process with the lab's identity, which it has read when this returns.
  explicit LoginProcessFixture(const Lab* lab = nullptr);
  ~LoginProcessFixture();

  // Returns the error of identity_read; empty: the identity is used.
  std::string give_identity(const std::filesystem::path& folder);
  // Returns a client that the broker has just passed on, and that has sent `early` before.
  LoginClient connect(server::ipc::Arrival arrival = {}, std::string_view early = {});
  // Returns a client that has logged in, inside TLS with this certificate or outside as the open tenant, and whose
  // request the broker has got.
  LoginClient waiting_client(const std::optional<ClientTls>& shows);
  server::ipc::ConnectionId last() const { return last_; }
  void send(server::ipc::Message message);
  // Returns the next message that is no TurnedAway; nothing: the deadline passed, or the process ended.
  std::optional<server::ipc::Message> next();
  // Returns the next message, which must be of this kind.
  template <class Kind>
  std::optional<Kind> next_as() {
    auto message = next();
    if (!message || !std::holds_alternative<Kind>(*message)) return std::nullopt;
    return std::get<Kind>(std::move(*message));
  }
  // Returns the next request; skips messages about clients that have left.
  std::optional<server::ipc::Login> next_request();
  // Returns the next refused connection.
  std::optional<server::ipc::TurnedAway> next_refusal();

  pid_t pid() const { return pid_; }
  void leave() { broker_.reset(); }
  // Returns the exit code, or minus the signal.
  int wait();

 private:
  std::optional<server::ipc::Message> receive();

  std::optional<server::ipc::Channel> broker_;
  pid_t pid_ = -1;
  server::ipc::ConnectionId last_ = 0;
  std::vector<server::ipc::Message> messages_;
  std::vector<server::ipc::TurnedAway> refusals_;
};

}  // namespace gpuwire::test
