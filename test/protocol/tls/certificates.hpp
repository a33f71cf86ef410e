// Authorities and certificates for tests, made on the spot.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "protocol/tls/context.hpp"
#include "protocol/tls/credentials.hpp"
#include "protocol/tls/openssl.hpp"

namespace gpuwire::test {

struct Authority {
  tls::Certificate certificate;
  tls::PrivateKey key;
};
Authority make_authority(const std::string& name = "test CA");

struct Wish {
  std::string name = "tenant";
  std::vector<std::string> hosts;  // "DNS:gpu7", "IP:127.0.0.1"
  bool server = false;
  long from_s = -3600, until_s = 3600;  // from now
};
// Signed by `authority`, or by itself.
tls::Credentials issue(const Authority* authority, const Wish& wish);

std::string pem(const tls::Certificate& certificate);
std::string pem(const tls::PrivateKey& key);
// A file for the time of the test, with these contents and this mode.
class File {
 public:
  File(const std::string& contents, unsigned mode = 0600);
  ~File();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

tls::Certificate share(const tls::Certificate& certificate);

// The first handshake's server as the login process makes it.
tls::Context server_context(const tls::Credentials& own, const tls::Certificate& clients_authority);
// A client that trusts `authority`, with a certificate or (null) without. The authority's file is called "ca.pem" in
// texts.
tls::Context client_context(const Authority& authority, const tls::Credentials* own = nullptr);

}  // namespace gpuwire::test
