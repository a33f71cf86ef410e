// SignIns has the signed-in visitors of the web page. The broker holds it, so that gpuwire-web, which talks to
// strangers, can show and do no more than its signed-in visitors may.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include <tl/expected.hpp>

#include "server/control/web/limits.hpp"
#include "server/identity/token.hpp"

namespace gpuwire::server {

struct WebVisitor {
  std::string tenant;      // empty: an administrator
  std::string credential;  // the token's id
  std::string user = {};   // the tenant's user of the token; empty: no particular one
  bool administrator() const { return tenant.empty(); }
  bool operator==(const WebVisitor&) const = default;
};

// The broker's thread only. Tickets and codes are stored as hashes, so that this process's memory reveals none.
class SignIns {
 public:
  // Returns the present owner of the token; the error is for the visitor.
  using TenantOfToken = std::function<tl::expected<WebVisitor, std::string>(const std::string& token)>;
  // Whether the visitor's credential is still valid.
  using Counts = std::function<bool(const WebVisitor& visitor)>;
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  SignIns(TenantOfToken tenant_of_token, Counts counts, Clock clock = &std::chrono::steady_clock::now);

  // Returns a code that signs an administrator in, once, within kWebCodeTime. The error: the system has no randomness.
  tl::expected<std::string, std::string> make_code();

  struct Ticket {
    std::string text;
    WebVisitor visitor;
  };
  // `secret`: a code or a tenant's token. The error is for the visitor.
  tl::expected<Ticket, std::string> sign_in(const std::string& secret);
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
  using Map = std::map<TokenHash, SignIn>;
  tl::expected<WebVisitor, std::string> visitor_of(const std::string& secret);
  void forget_old();
  void make_room(const WebVisitor& visitor);

  const TenantOfToken tenant_of_token_;
  const Counts counts_;
  const Clock clock_;
  Map sign_ins_;                     // by the hash of the ticket
  std::map<TokenHash, Time> codes_;  // the time of each code's creation
};

}  // namespace gpuwire::server
