// TLS of the web page: a certificate that browsers trust, and tenants' certificates of the lab's own authority.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "protocol/tls/openssl.hpp"
#include "server/identity/certificate.hpp"

namespace gpuwire::server {

// The texts of files, in PEM.
struct PageTexts {
  // The page's own, and those between it and its authority.
  std::string certificate;
  std::string key;
  // The authority of tenants' certificates; empty: visitors are not asked for one.
  std::string authority;
};

// TLS 1.3, without tickets, early data or resumption, as at the server's own port. The error says which of the texts
// cannot be used and why: unreadable, not belonging together, expired.
tl::expected<tls::Context, std::string> make_page_context(const PageTexts& texts, WallTime now);

}  // namespace gpuwire::server
