#include "server/control/web/sign_ins.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::server {

namespace {

// Makes room for one more of `tenant`, by removing the entry that was not used for longest: of the tenant's, if it has
// `of_tenant_max`, otherwise of all. A tenant takes places of others only if all places are taken.
void make_room(auto& entries, const std::string& tenant, auto tenant_of, size_t of_tenant_max, size_t all_max) {
  auto remove_oldest = [&](auto among) {
    auto oldest = entries.end();
    for (auto one = entries.begin(); one != entries.end(); ++one)
      if (among(one->second) && (oldest == entries.end() || one->second.used < oldest->second.used)) oldest = one;
    if (oldest != entries.end()) entries.erase(oldest);
  };
  auto own = [&](const auto& one) { return tenant_of(one) == tenant; };
  const auto count = std::ranges::count_if(entries, [&](const auto& one) { return own(one.second); });
  if (size_t(count) >= of_tenant_max) remove_oldest(own);
  else if (entries.size() >= all_max) remove_oldest([](const auto&) { return true; });
}

}  // namespace

SignIns::SignIns(WebCredentials credentials, Clock clock)
    : credentials_(std::move(credentials)), clock_(std::move(clock)) {}

tl::expected<std::string, std::string> SignIns::make_code() {
  auto code = new_token();
  if (!code) return code;
  forget_old();
  if (codes_.size() >= kWebCodesMax)
    codes_.erase(std::ranges::min_element(codes_, {}, [](const auto& one) { return one.second; }));
  codes_[hash_token(*code)] = clock_();
  return code;
}

tl::expected<SignIns::Ticket, std::string> SignIns::make_grant(const ShownCertificate& certificate) {
  forget_old();
  auto owner = credentials_.of_certificate(certificate, {});
  if (!owner) return tl::unexpected(owner.error());
  auto grant = new_token();
  if (!grant) return tl::unexpected(grant.error());
  make_room(
      grants_, owner->tenant, [](const Grant& one) { return one.tenant; }, kWebGrantsPerTenantMax, kWebGrantsMax);
  grants_[hash_token(*grant)] = {certificate, owner->tenant, clock_()};
  return Ticket{std::move(*grant), std::move(*owner)};
}

// A code is an administrator's, whatever certificate the administrator's browser shows.
tl::expected<WebVisitor, std::string> SignIns::visitor_of(const std::string& secret, const std::string& grant) {
  if ((secret.empty() && grant.empty()) || secret.size() > kWebSecretBytesMax)
    return tl::unexpected(std::string("this is neither a token nor a code of this server"));
  if (codes_.erase(hash_token(secret)) != 0) return WebVisitor{};
  if (grant.empty()) return credentials_.of_token(secret);
  auto found = grants_.find(hash_token(grant));
  if (found == grants_.end())
    return tl::unexpected(std::string("your certificate has to be shown again: load the page again"));
  found->second.used = clock_();
  return credentials_.of_certificate(found->second.certificate, secret);
}

tl::expected<SignIns::Ticket, std::string> SignIns::sign_in(const std::string& secret, const std::string& grant) {
  forget_old();
  auto visitor = visitor_of(secret, grant);
  if (!visitor) return tl::unexpected(visitor.error());
  auto ticket = new_token();
  if (!ticket) return tl::unexpected(ticket.error());
  make_room(
      sign_ins_, visitor->tenant, [](const SignIn& one) { return one.visitor.tenant; }, kWebSignInsPerTenantMax,
      kWebSignInsMax);
  sign_ins_[hash_token(*ticket)] = {*visitor, clock_(), clock_()};
  return Ticket{std::move(*ticket), std::move(*visitor)};
}

const WebVisitor* SignIns::find(const std::string& ticket) {
  forget_old();
  auto found = sign_ins_.find(hash_token(ticket));
  if (found == sign_ins_.end()) return nullptr;
  if (!found->second.visitor.administrator() && !credentials_.counts(found->second.visitor)) {
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
  std::erase_if(grants_, [&](const auto& one) { return now - one.second.used > kWebSignInWhole; });
}

}  // namespace gpuwire::server
