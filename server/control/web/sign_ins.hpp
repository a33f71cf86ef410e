// Who has signed in to the web page. The broker keeps it, so that gpuwire-web, which speaks with strangers, can show
// and do no more than those who have signed in may.
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
  std::string user = {};   // who of the tenant the token was given to; empty: nobody in particular
  bool administrator() const { return tenant.empty(); }
  bool operator==(const WebVisitor&) const = default;
};

// The broker's thread only. Tickets and codes are kept as hashes: a look into this process's memory gives nobody one.
class SignIns {
 public:
  // Whose token this is now; the error is for the visitor.
  using TenantOfToken = std::function<tl::expected<WebVisitor, std::string>(const std::string& token)>;
  // Whether what the visitor has signed in with counts still.
  using Counts = std::function<bool(const WebVisitor& visitor)>;
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  SignIns(TenantOfToken tenant_of_token, Counts counts, Clock clock = &std::chrono::steady_clock::now);

  // Signs an administrator in, once, within kWebCodeTime. The error: the system has no randomness.
  tl::expected<std::string, std::string> make_code();

  struct Ticket {
    std::string text;
    WebVisitor visitor;
  };
  // `secret`: a code or a tenant's token. The error is for the visitor.
  tl::expected<Ticket, std::string> sign_in(const std::string& secret);
  // Null: the ticket is none, or does not count any more. Valid until the next call. Counts as a use.
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
  std::map<TokenHash, Time> codes_;  // when each was made
};

}  // namespace gpuwire::server
