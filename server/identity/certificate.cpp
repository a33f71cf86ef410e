#include "server/identity/certificate.hpp"

#include <algorithm>
#include <climits>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace gpuwire::server {
namespace {

constexpr size_t kSerialBits = 128;
constexpr size_t kHostBytesMax = 253;
constexpr size_t kTenantNameBytesMax = 64;

// Makes a certificate with the fields that all certificates have in common, and the given ones.
struct Shape {
  std::string common_name;
  std::string basic_constraints, key_usage;
  std::string extended_key_usage;  // empty: none
  std::string alternative_names;   // empty: none
};

bool is_host_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' || c == '*';
}

bool is_ip_address(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), address) == 1 || ::inet_pton(AF_INET6, host.c_str(), address) == 1;
}

// Returns the names in libcrypto's notation. A checked host name contains no commas or colons that could be misread.
tl::expected<std::string, std::string> alternative_names(const std::vector<std::string>& hosts) {
  if (hosts.empty() || hosts.size() > kHostsMax)
    return tl::unexpected(fmt::format("{} host names; a server certificate has 1 to {}", hosts.size(), kHostsMax));
  std::string names;
  for (const std::string& host : hosts) {
    bool address = is_ip_address(host);
    if (!address &&
        (host.empty() || host.size() > kHostBytesMax || !std::all_of(host.begin(), host.end(), is_host_character)))
      return tl::unexpected(fmt::format("\"{}\" is not a host name or IP address", host));
    names += fmt::format("{}{}:{}", names.empty() ? "" : ",", address ? "IP" : "DNS", host);
  }
  return names;
}

bool add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  if (value.empty()) return true;
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  bool added = extension && X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

bool set_random_serial(X509* certificate) {
  OpensslHandle<BIGNUM> number(BN_new());
  return number && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_name(X509* certificate, const std::string& common_name) {
  X509_NAME* name = X509_get_subject_name(certificate);
  auto bytes = reinterpret_cast<const unsigned char*>(common_name.data());
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, bytes, int(common_name.size()), -1, 0) == 1;
}

// Null `authority`: signs itself.
bool set_times(X509* certificate, Validity validity, const X509* authority) {
  WallTime until = validity.now + std::chrono::hours(24) * validity.days;
  if (authority) until = std::min(until, expiry_of(authority));
  return ASN1_TIME_set(X509_getm_notBefore(certificate),
                       std::chrono::system_clock::to_time_t(validity.now - kClockSkew)) &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), std::chrono::system_clock::to_time_t(until));
}

bool fill(X509* certificate, EVP_PKEY* key, const Shape& shape, Validity validity, const Authority* authority) {
  X509* issuer = authority ? authority->certificate.get() : certificate;
  return X509_set_version(certificate, X509_VERSION_3) == 1 && set_random_serial(certificate) &&
         set_name(certificate, shape.common_name) &&
         X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
         set_times(certificate, validity, authority ? authority->certificate.get() : nullptr) &&
         X509_set_pubkey(certificate, key) == 1 &&
         add_extension(certificate, issuer, NID_basic_constraints, shape.basic_constraints) &&
         add_extension(certificate, issuer, NID_key_usage, shape.key_usage) &&
         add_extension(certificate, issuer, NID_ext_key_usage, shape.extended_key_usage) &&
         add_extension(certificate, issuer, NID_subject_alt_name, shape.alternative_names) &&
         add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
         add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
         X509_sign(certificate, authority ? authority->key.get() : key, EVP_sha256()) != 0;
}

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  long size = BIO_get_mem_data(bio, &bytes);
  return {bytes, size_t(size)};
}

// `key`: null: a new one.
tl::expected<Issued, std::string> issue(const Shape& shape, Validity validity, const Authority* authority,
                                        KeyHandle key = {}) {
  if (validity.days < 1 || validity.days > kValidityDaysMax)
    return tl::unexpected(fmt::format("the validity must be 1 to {1} days, got {0}", validity.days, kValidityDaysMax));
  if (authority && expiry_of(authority->certificate.get()) <= validity.now)
    return tl::unexpected(std::string("the certificate authority has expired"));
  if (!key) key.reset(EVP_EC_gen("P-256"));
  CertificateHandle certificate(X509_new());
  if (!key || !certificate || !fill(certificate.get(), key.get(), shape, validity, authority))
    return tl::unexpected(openssl_error("making a certificate"));
  OpensslHandle<BIO> certificate_text(BIO_new(BIO_s_mem())), key_text(BIO_new(BIO_s_secmem()));
  if (!certificate_text || !key_text || PEM_write_bio_X509(certificate_text.get(), certificate.get()) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return tl::unexpected(openssl_error("writing a certificate"));
  return Issued{text_of(certificate_text.get()), text_of(key_text.get()), serial_of(certificate.get()),
                expiry_of(certificate.get())};
}

std::string common_name_of(const X509* certificate) {
  const X509_NAME* name = X509_get_subject_name(certificate);
  int at = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(name, NID_commonName, at) >= 0) return {};
  const ASN1_STRING* value = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, at));
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)), size_t(ASN1_STRING_length(value))};
}

template <class Visit>
void for_each_alternative_name(const X509* certificate, Visit visit) {
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) visit(sk_GENERAL_NAME_value(names, i));
  GENERAL_NAMES_free(names);
}

std::string text_of(const ASN1_STRING* value) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)), size_t(ASN1_STRING_length(value))};
}

// Never asks for a password on a terminal: a server that starts unattended cannot use encrypted keys.
int no_passphrase(char*, int, int, void*) { return -1; }

}  // namespace

std::string openssl_error(std::string_view what) {
  char text[256] = "no reason given";
  if (unsigned long code = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(code);
    if (reason) fmt::format_to_n(text, sizeof text - 1, "{}\0", reason);
    else ERR_error_string_n(code, text, sizeof text);
  }
  ERR_clear_error();
  return fmt::format("{}: {}", what, static_cast<const char*>(text));
}

// WallTime counts nanoseconds in 64 bits: it ends in April 2262.
constexpr int kYearMin = 1970, kYearMax = 2261;

std::optional<WallTime> utc_time(int year, unsigned month, unsigned day, unsigned hour, unsigned minute,
                                 unsigned second) {
  using namespace std::chrono;
  if (year < kYearMin || year > kYearMax) return std::nullopt;
  const year_month_day date{std::chrono::year{year}, std::chrono::month{month}, std::chrono::day{day}};
  if (!date.ok() || hour > 23 || minute > 59 || second > 60) return std::nullopt;
  return sys_days(date) + hours(hour) + minutes(minute) + seconds(second);
}

bool is_tenant_name(std::string_view name) {
  auto allowed = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kTenantNameBytesMax && std::all_of(name.begin(), name.end(), allowed);
}

namespace {

Shape shape_of_authority(std::string common_name) {
  return {.common_name = std::move(common_name),
          .basic_constraints = "critical,CA:TRUE,pathlen:0",
          .key_usage = "critical,keyCertSign,cRLSign"};
}

}  // namespace

tl::expected<Issued, std::string> make_authority(const std::string& host, Validity validity) {
  return issue(shape_of_authority(fmt::format("gpuwire CA of {:.40}", host)), validity, nullptr);
}

tl::expected<Issued, std::string> renew_authority(const Authority& authority, Validity validity) {
  const std::string name = common_name_of(authority.certificate.get());
  if (name.empty()) return tl::unexpected(std::string("the authority's certificate has no single common name"));
  EVP_PKEY_up_ref(authority.key.get());
  return issue(shape_of_authority(name), validity, nullptr, KeyHandle(authority.key.get()));
}

tl::expected<Authority, std::string> read_authority(const std::string& certificate_pem, const std::string& key_pem) {
  auto certificate = read_certificate(certificate_pem);
  if (!certificate) return tl::unexpected(certificate.error());
  auto key = read_key(key_pem);
  if (!key) return tl::unexpected(key.error());
  if (X509_check_private_key(certificate->get(), key->get()) != 1)
    return tl::unexpected(openssl_error("the authority's certificate and key do not belong together"));
  return Authority{std::move(*certificate), std::move(*key)};
}

tl::expected<Issued, std::string> issue_server_certificate(const Authority& authority,
                                                           const std::vector<std::string>& hosts, Validity validity) {
  auto names = alternative_names(hosts);
  if (!names) return tl::unexpected(names.error());
  return issue(
      {.common_name = hosts.front().substr(0, kTenantNameBytesMax),  // the same limit as X.520's for a common name
       .basic_constraints = "critical,CA:FALSE",
       .key_usage = "critical,digitalSignature",
       .extended_key_usage = "serverAuth",
       .alternative_names = *names},
      validity, &authority);
}

tl::expected<Issued, std::string> issue_client_certificate(const Authority& authority, const std::string& tenant,
                                                           Validity validity) {
  if (!is_tenant_name(tenant))
    return tl::unexpected(
        fmt::format("\"{}\" is not a tenant name: it must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'", tenant));
  return issue({.common_name = tenant,
                .basic_constraints = "critical,CA:FALSE",
                .key_usage = "critical,digitalSignature",
                .extended_key_usage = "clientAuth",
                .alternative_names = fmt::format("URI:{}{}", kTenantUriPrefix, tenant)},
               validity, &authority);
}

tl::expected<CertificateHandle, std::string> read_certificate(const std::string& pem) {
  OpensslHandle<BIO> bio(BIO_new_mem_buf(pem.data(), int(std::min<size_t>(pem.size(), INT_MAX))));
  CertificateHandle certificate(bio ? PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr) : nullptr);
  if (!certificate) return tl::unexpected(openssl_error("no certificate can be read"));
  return certificate;
}

tl::expected<KeyHandle, std::string> read_key(const std::string& pem) {
  OpensslHandle<BIO> bio(BIO_new_mem_buf(pem.data(), int(std::min<size_t>(pem.size(), INT_MAX))));
  KeyHandle key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr) : nullptr);
  if (!key) return tl::unexpected(openssl_error("no private key can be read"));
  return key;
}

std::string serial_of(const X509* certificate) {
  OpensslHandle<BIGNUM> number(ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  char* digits = number ? BN_bn2hex(number.get()) : nullptr;
  std::string text = digits ? digits : "";
  OPENSSL_free(digits);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  return text;
}

WallTime expiry_of(const X509* certificate) {
  std::tm utc{};
  ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &utc);
  if (utc.tm_year + 1900 > kYearMax) return WallTime::max();  // RFC 5280 (4.1.2.5) has 99991231235959Z for "no end"
  return utc_time(utc.tm_year + 1900, unsigned(utc.tm_mon + 1), unsigned(utc.tm_mday), unsigned(utc.tm_hour),
                  unsigned(utc.tm_min), unsigned(utc.tm_sec))
      .value_or(WallTime());
}

std::vector<std::string> hosts_of(const X509* certificate) {
  std::vector<std::string> hosts;
  for_each_alternative_name(certificate, [&](const GENERAL_NAME* name) {
    if (name->type == GEN_DNS) hosts.push_back(text_of(name->d.dNSName));
    if (name->type != GEN_IPADD) return;
    char text[INET6_ADDRSTRLEN] = "";
    int family = ASN1_STRING_length(name->d.iPAddress) == sizeof(in_addr) ? AF_INET : AF_INET6;
    if (::inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text)) hosts.emplace_back(text);
  });
  return hosts;
}

tl::expected<std::string, std::string> tenant_of(const X509* certificate) {
  std::vector<std::string> named;
  for_each_alternative_name(certificate, [&](const GENERAL_NAME* name) {
    if (name->type != GEN_URI) return;
    std::string uri = text_of(name->d.uniformResourceIdentifier);
    if (uri.starts_with(kTenantUriPrefix)) named.push_back(uri.substr(kTenantUriPrefix.size()));
  });
  std::string common_name = common_name_of(certificate);
  if (named.size() != 1 || named.front() != common_name || !is_tenant_name(common_name))
    return tl::unexpected(std::string("the certificate names no tenant"));
  return common_name;
}

}  // namespace gpuwire::server
