// A server that clients have to log in to, for tests: it listens on loopback or on a Unix socket, and answers one
// client by the test's script.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "protocol/tls/channel.hpp"
#include "protocol/tls/context.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/transport/tcp.hpp"
#include "test/client_stub/session/fake_server.hpp"

namespace gpuwire::test {

struct LoginSeen {
  uint32_t preface_flags = 0;
  std::string token, token_name, program, host, release, certificate_name, query;
  uint32_t gpus = 0, process_id = 0;
  uint64_t memory_bytes = 0;
  std::string gpu_type;
  const char* road = "";  // the transport of the session
};

class LoginServer {
 public:
  struct Options {
    tls::Context context;   // null: without TLS
    std::string token;      // the server knows and announces its hash; without TLS
    bool proves = true;     // false: it announces the hash without a proof
    std::string unix_path;  // empty: 127.0.0.1, a free port
    uint32_t flags = 4;     // the preface's flags: kPrefaceLogin; kPrefaceTls is added with a context
    uint32_t ring_bytes = transport::shared_memory::kRingBytes;  // if the preface's flags offer shared memory
    std::string plain_refusal;  // not empty: an earlier connection without TLS is refused with this text
    bool told_before = false;   // the preface has that refusal, and the client has to leave without a Login
    bool another_key = false;   // the worker gets a wrong key
    // So many connections are closed before the answered one: at once, after the preface, after the Login, and so on.
    unsigned drops = 0;
    unsigned queue_drops = 0;  // then so many are closed after they got a place in the queue, and a ticket
  };
  // `answer` runs on the server's thread after the Login, and answers by the functions below; once it has admitted the
  // client, a session follows in which every call succeeds.
  explicit LoginServer(Options options, std::function<void(LoginServer&)> answer);
  ~LoginServer();

  const std::string& port() const { return port_; }
  // Waits until the server's thread has answered and begins the session, or has ended: it does not write `seen_` after
  // that.
  const LoginSeen& seen() const {
    seen_whole_.wait(false);
    return seen_;
  }

  void queued(uint32_t place, uint32_t waiting, const std::string& why, const std::string& ticket = {});
  void refuse(const std::string& why);
  // `ends_unix_s`: as LoginAnswer.identityEndsUnixS.
  void admit(int64_t ends_unix_s = 0);
  // Admits the client, and ends its session before it has begun. Without TLS.
  void admit_and_end(const std::string& reason);
  void send_frame(const wire::FrameHeader& header, std::span<const std::byte> message);
  // Accepts no further connection. The server's thread only.
  void close_listener() { listener_.reset(); }
  // Waits until the client has closed the connection.
  void await_end();

 private:
  void serve();
  void serve_clients();
  void tell_seen();
  bool refuse_plain();
  bool next_client();
  bool exchange_prefaces();
  void drop(unsigned stage);
  void meet();
  bool read_login();
  bool challenge(const std::string& nonce);
  void begin_session();
  template <class Fill>
  void answer(Fill&& fill);

  Options options_;
  std::function<void(LoginServer&)> answer_;
  std::unique_ptr<transport::TcpListener> listener_;
  int unix_listener_ = -1;
  std::string port_;
  LoginSeen seen_;
  std::atomic<bool> seen_whole_{false};  // set once, by the server's thread, after its last write to seen_
  bool admitted_ = false;
  std::unique_ptr<transport::Transport> bare_;
  std::unique_ptr<tls::TlsChannel> channel_;
  std::unique_ptr<transport::Transport> inside_;  // bare_ or what is inside channel_
  transport::Transport* connection_ = nullptr;
  std::thread thread_;
};

}  // namespace gpuwire::test
