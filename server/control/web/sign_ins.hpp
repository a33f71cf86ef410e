// SignIns has the signed-in visitors of the web page. The broker holds it, so that gpuwire-web, which talks to
// strangers, can show and do no more than its signed-in visitors may.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include <tl/expected.hpp>

#include "server/control/web/limits.hpp"
#include "server/identity/tenant_choice.hpp"
#include "server/identity/token.hpp"

namespace gpuwire::server {

struct WebVisitor {
  // Empty: an administrator.
  std::string tenant;
  // The token's id, or the certificate's serial.
  std::string credential;
  // The tenant's user of the credential; empty: no particular one.
  std::string user = {};
  bool administrator() const { return tenant.empty(); }
  bool operator==(const WebVisitor&) const = default;
};

// The present owners of credentials. The errors are for the visitor.
struct WebCredentials {
  using Owner = tl::expected<WebVisitor, std::string>;
  std::function<Owner(const std::string& token)> of_token;
  // `token`: shown beside the certificate; empty: none.
  std::function<Owner(const ShownCertificate& certificate, const std::string& token)> of_certificate;
  // Whether the visitor's credential is still valid.
  std::function<bool(const WebVisitor& visitor)> counts;
};

// The broker's thread only. Tickets, codes and grants are stored as hashes, so that this process's memory reveals none.
class SignIns {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  explicit SignIns(WebCredentials credentials, Clock clock = &std::chrono::steady_clock::now);

  // Returns a code that signs an administrator in, once, within kWebCodeTime. The error: the system has no randomness.
  tl::expected<std::string, std::string> make_code();

  struct Ticket {
    std::string text;
    WebVisitor visitor;
  };
  // Returns a grant for a connection on which this certificate was shown, with its owner: what the process that serves
  // the page can sign visitors of this connection in with. The error, for the visitor: the certificate does not count.
  tl::expected<Ticket, std::string> make_grant(const ShownCertificate& certificate);
  // `secret`: a code or a tenant's token. `grant`: of the visitor's connection, which signs in by itself if `secret` is
  // empty. The error is for the visitor.
  tl::expected<Ticket, std::string> sign_in(const std::string& secret, const std::string& grant = {});
  // Returns null if the ticket is invalid or expired. The pointer is valid until the next call. The call counts as a
  // use.
  const WebVisitor* find(const std::string& ticket);
  void sign_out(const std::string& ticket);
  size_t count() const { return sign_ins_.size(); }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct SignIn {
    WebVisitor visitor;
    Time begun, used;
  };
  struct Grant {
    ShownCertificate certificate;
    std::string tenant;
    Time used;
  };
  tl::expected<WebVisitor, std::string> visitor_of(const std::string& secret, const std::string& grant);
  void forget_old();

  const WebCredentials credentials_;
  const Clock clock_;
  // By the hash of the ticket.
  std::map<TokenHash, SignIn> sign_ins_;
  // The time of each code's creation.
  std::map<TokenHash, Time> codes_;
  // By the hash of the grant.
  std::map<TokenHash, Grant> grants_;
};

}  // namespace gpuwire::server
