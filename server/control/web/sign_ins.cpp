#include "server/control/web/sign_ins.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::server {

SignIns::SignIns(TenantOfToken tenant_of_token, Counts counts, Clock clock)
    : tenant_of_token_(std::move(tenant_of_token)), counts_(std::move(counts)), clock_(std::move(clock)) {}

tl::expected<std::string, std::string> SignIns::make_code() {
  auto code = new_token();
  if (!code) return code;
  forget_old();
  if (codes_.size() >= kWebCodesMax)
    codes_.erase(std::ranges::min_element(codes_, {}, [](const auto& one) { return one.second; }));
  codes_[hash_token(*code)] = clock_();
  return code;
}

tl::expected<WebVisitor, std::string> SignIns::visitor_of(const std::string& secret) {
  if (secret.empty() || secret.size() > kWebSecretBytesMax)
    return tl::unexpected(std::string("this is neither a token nor a code of this server"));
  if (codes_.erase(hash_token(secret)) != 0) return WebVisitor{};
  return tenant_of_token_(secret);
}

tl::expected<SignIns::Ticket, std::string> SignIns::sign_in(const std::string& secret) {
  forget_old();
  auto visitor = visitor_of(secret);
  if (!visitor) return tl::unexpected(visitor.error());
  auto ticket = new_token();
  if (!ticket) return tl::unexpected(ticket.error());
  make_room(*visitor);
  sign_ins_[hash_token(*ticket)] = {*visitor, clock_(), clock_()};
  return Ticket{std::move(*ticket), std::move(*visitor)};
}

const WebVisitor* SignIns::find(const std::string& ticket) {
  forget_old();
  auto found = sign_ins_.find(hash_token(ticket));
  if (found == sign_ins_.end()) return nullptr;
  if (!found->second.visitor.administrator() && !counts_(found->second.visitor)) {
    sign_ins_.erase(found);
    return nullptr;
  }
  found->second.used = clock_();
  return &found->second.visitor;
}

void SignIns::sign_out(const std::string& ticket) { sign_ins_.erase(hash_token(ticket)); }

void SignIns::forget_old() {
  const Time now = clock_();
  std::erase_if(codes_, [&](const auto& one) { return now - one.second > kWebCodeTime; });
  std::erase_if(sign_ins_, [&](const auto& one) {
    return now - one.second.used > kWebSignInIdle || now - one.second.begun > kWebSignInWhole;
  });
}

// A tenant takes places of others only if all places are taken.
void SignIns::make_room(const WebVisitor& visitor) {
  auto push_out = [&](auto among) {
    auto oldest = sign_ins_.end();
    for (auto one = sign_ins_.begin(); one != sign_ins_.end(); ++one)
      if (among(one->second) && (oldest == sign_ins_.end() || one->second.used < oldest->second.used)) oldest = one;
    if (oldest != sign_ins_.end()) sign_ins_.erase(oldest);
  };
  auto own = [&](const SignIn& one) { return one.visitor.tenant == visitor.tenant; };
  const auto count = std::ranges::count_if(sign_ins_, [&](const auto& one) { return own(one.second); });
  if (size_t(count) >= kWebSignInsPerTenantMax) push_out(own);
  else if (sign_ins_.size() >= kWebSignInsMax) push_out([](const SignIn&) { return true; });
}

}  // namespace gpuwire::server
