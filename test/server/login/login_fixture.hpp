// A real gpuwire-login with the test in the broker's place, and clients that say what the test wants.
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

// An identity folder of `gpuwire admin`, made by its own functions.
class Lab {
 public:
  Lab();
  const std::filesystem::path& path() const { return path_; }
  // `age_days`: how long ago it was given out; with fewer `days` it has expired.
  server::NewCredential certificate(const std::string& tenant, unsigned days = 30, unsigned age_days = 0) const;
  server::NewCredential token(const std::string& tenant, unsigned days = 30, unsigned age_days = 0) const;
  std::string file(std::string_view name) const;

 private:
  TemporaryDirectory temporary_;
  std::filesystem::path path_;
};

// The line of a token file that is the token.
std::string token_in(const server::NewCredential& made);

// What a client is made with.
struct ClientTls {
  std::string authority;  // PEM
  std::string bundle;     // key and certificate, or empty
  int version_max = TLS1_3_VERSION;
};

// The certificate inside TLS; without TLS, nothing.
std::optional<ClientTls> shown(bool tls, const server::NewCredential& certificate);

class LoginClient {
 public:
  explicit LoginClient(int socket);
  ~LoginClient();
  LoginClient(LoginClient&&) noexcept;
  LoginClient& operator=(LoginClient&&) = delete;

  int socket() const { return socket_; }
  void close();
  bool send(std::string_view bytes);       // inside TLS when there is TLS
  bool send_bare(std::string_view bytes);  // on the socket
  std::string read_bare(size_t bytes);
  // The server's preface; nothing: the connection ended.
  std::optional<wire::Preface> read_preface();
  // Empty, or what went wrong.
  std::string handshake(const ClientTls& with);
  void send_login(const std::string& token = {}, unsigned gpus = 0);
  // Names the token, and shows it if the server has proven that it knows it, `spoilt` by one bit or not. Empty, or what
  // went wrong, as in answer().
  std::string show_token(const std::string& token, bool spoilt = false);
  // "admitted", "queued 1 of 2: why", "refused: why", or "closed: why".
  std::string answer();
  // Preface, TLS if wanted, login.
  std::string log_in(const std::optional<ClientTls>& with, const std::string& token = {});
  std::string exported_key();
  bool closed_by_server();

 private:
  bool read_exactly(std::span<std::byte> out, std::string& why);

  bool challenged_ = false;  // by the last answer
  tls::TokenNonce server_nonce_{};
  tls::TokenProof server_proof_{};
  int socket_;
  tls::Context context_;
  tls::Connection tls_;
};

class LoginProcessFixture {
 public:
  // With the lab's identity, which it has read when this returns.
  explicit LoginProcessFixture(const Lab* lab = nullptr);
  ~LoginProcessFixture();

  // What identity_read says: empty when it is used.
  std::string give_identity(const std::filesystem::path& folder);
  // A client that has just been let in by the broker, and has said `early` before.
  LoginClient connect(server::ipc::Arrival arrival = {}, std::string_view early = {});
  // A client that has logged in, inside TLS with what it shows or outside as the open tenant, and of whom the broker
  // has heard.
  LoginClient waiting_client(const std::optional<ClientTls>& shows);
  server::ipc::ConnectionId last() const { return last_; }
  void send(server::ipc::Message message);
  // The next message that is no TurnedAway; nothing: the deadline passed, or the process ended.
  std::optional<server::ipc::Message> next();
  // The next message is of this kind.
  template <class Kind>
  std::optional<Kind> next_as() {
    auto message = next();
    if (!message || !std::holds_alternative<Kind>(*message)) return std::nullopt;
    return std::get<Kind>(std::move(*message));
  }
  // The next request; what is said of clients that have left since is passed over.
  std::optional<server::ipc::Login> next_request();
  // The next connection that was turned away.
  std::optional<server::ipc::TurnedAway> next_refusal();

  pid_t pid() const { return pid_; }
  void leave() { broker_.reset(); }
  // Exit code, or minus the signal.
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
