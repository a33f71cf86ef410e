// Makes a lab's own certificate authority, and the certificates that it signs. Keys are EC P-256, signatures SHA-256.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

#include "server/identity/openssl_handles.hpp"

namespace gpuwire::server {

using WallTime = std::chrono::system_clock::time_point;

inline constexpr unsigned kAuthorityDays = 3650, kServerDays = 730, kClientDays = 365;
inline constexpr unsigned kValidityDaysMax = 36'500;
// Certificates are valid from shortly before their creation, because clocks differ.
inline constexpr std::chrono::minutes kClockSkew{10};
inline constexpr size_t kHostsMax = 64;
inline constexpr std::string_view kTenantUriPrefix = "gpuwire://tenant/";

struct Validity {
  WallTime now;
  // 1 to kValidityDaysMax; cut to the authority's own end.
  unsigned days;
};

struct Issued {
  std::string certificate_pem;
  // PKCS#8, not encrypted.
  std::string key_pem;
  // 32 hexadecimal digits.
  std::string serial;
  WallTime expires;
};

struct Authority {
  CertificateHandle certificate;
  KeyHandle key;
};

// Nothing: the day or hour does not exist, or WallTime cannot represent it (it represents the years 1970 to 2261).
std::optional<WallTime> utc_time(int year, unsigned month, unsigned day, unsigned hour, unsigned minute,
                                 unsigned second);

// 1 to 64 of [A-Za-z0-9._-].
bool is_tenant_name(std::string_view name);
// Checks the name of a user of a tenant, which may not begin with a dot, because files are named after it.
inline bool is_user_name(std::string_view name) { return is_tenant_name(name) && name.front() != '.'; }

// Each error is one phrase that names the object that could not be made or read.
tl::expected<Issued, std::string> make_authority(const std::string& host, Validity validity);
// Renews the authority's certificate; its key and name stay. Clients that trust the new certificate accept earlier
// certificates, and clients that trust the old one accept later certificates, until the old one expires.
tl::expected<Issued, std::string> renew_authority(const Authority& authority, Validity validity);
tl::expected<Authority, std::string> read_authority(const std::string& certificate_pem, const std::string& key_pem);
// `hosts`: DNS names and IP addresses that clients may use; the first is the certificate's name.
tl::expected<Issued, std::string> issue_server_certificate(const Authority& authority,
                                                           const std::vector<std::string>& hosts, Validity validity);
tl::expected<Issued, std::string> issue_client_certificate(const Authority& authority, const std::string& tenant,
                                                           Validity validity);

// Reads the first certificate, or the first key, of a text.
tl::expected<CertificateHandle, std::string> read_certificate(const std::string& pem);
tl::expected<KeyHandle, std::string> read_key(const std::string& pem);

std::string serial_of(const X509* certificate);
// WallTime::max(): later than WallTime can represent.
WallTime expiry_of(const X509* certificate);
// Returns the DNS names and IP addresses of a certificate.
std::vector<std::string> hosts_of(const X509* certificate);
// Returns the tenant of a client certificate, whose common name and only tenant URI have to agree. Does not check the
// signer.
tl::expected<std::string, std::string> tenant_of(const X509* certificate);

}  // namespace gpuwire::server
