#include "protocol/tls/failure.hpp"

#include <algorithm>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509v3.h>

namespace gpuwire::tls {

namespace {

constexpr size_t kNamesShown = 4;

int fault_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Makes bytes of the peer safe for a terminal.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 255));
  for (char& c : out)
    if (c < 0x20 || c > 0x7e) c = '?';
  return out;
}

std::string name_text(const GENERAL_NAME* name) {
  int kind = 0;
  auto* value = static_cast<ASN1_STRING*>(GENERAL_NAME_get0_value(name, &kind));
  std::string_view bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                         size_t(ASN1_STRING_length(value)));
  if (kind == GEN_DNS) return printable(bytes);
  char text[INET6_ADDRSTRLEN] = {};
  if (kind == GEN_IPADD && (bytes.size() == 4 || bytes.size() == 16))
    inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
  return text;
}

std::string names_of(X509* certificate) {
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::string text;
  size_t shown = 0;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    if (sk_GENERAL_NAME_value(names, i)->type != GEN_DNS && sk_GENERAL_NAME_value(names, i)->type != GEN_IPADD)
      continue;
    if (shown++ == kNamesShown) {
      text += ", ...";
      break;
    }
    text += (text.empty() ? "" : ", ") + name_text(sk_GENERAL_NAME_value(names, i));
  }
  GENERAL_NAMES_free(names);
  return text;
}

std::string day_text(const ASN1_TIME* time) {
  tm when{};
  if (!time || ASN1_TIME_to_tm(time, &when) != 1) return "an unreadable day";
  return fmt::format("{:04}-{:02}-{:02}", when.tm_year + 1900, when.tm_mon + 1, when.tm_mday);
}

std::string certificate_text(const CertificateFault& fault, const Wanted& wanted) {
  std::string whose = fault.depth == 0 ? "the server's certificate" : "the certificate of the CA";
  switch (fault.error) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      if (fault.names.empty())
        return fmt::format("the server's certificate is for no host at all, so not for {}", wanted.host);
      return fmt::format("the server's certificate is for {}, not {}", fault.names, wanted.host);
    case X509_V_ERR_CERT_HAS_EXPIRED: return fmt::format("{} has expired: it was valid until {}", whose, fault.until);
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return fmt::format("{} is only valid from {} on (is this machine's clock right?)", whose, fault.until);
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return fmt::format("the server's certificate is not signed by the CA in {}", wanted.authorities_from);
    case X509_V_ERR_INVALID_PURPOSE: return "the certificate that the server presents is not a server certificate";
    case X509_V_ERR_INVALID_CA: return fmt::format("the certificate in {} is not one of a CA", wanted.authorities_from);
    default: return fmt::format("{} is not valid: {}", whose, X509_verify_cert_error_string(fault.error));
  }
}

bool is_alert(int reason) { return reason > SSL_AD_REASON_OFFSET && reason <= SSL_AD_REASON_OFFSET + 255; }

// Returns the reason that the other side sent before it closed. Empty: the error is of another kind.
std::string alert_text(int reason, bool client) {
  if (!is_alert(reason)) return {};
  const char* other = client ? "the server" : "the client";
  switch (reason - SSL_AD_REASON_OFFSET) {
    case SSL_AD_PROTOCOL_VERSION: return fmt::format("{} does not speak TLS 1.3", other);
    case SSL_AD_CERTIFICATE_REVOKED: return fmt::format("{} refuses your certificate: it is revoked", other);
    case SSL_AD_CERTIFICATE_EXPIRED: return fmt::format("{} refuses your certificate: it has expired", other);
    case SSL_AD_DECRYPT_ERROR:  // the alert for the signature of another CA with the same name
    case SSL_AD_UNKNOWN_CA: return fmt::format("{} refuses your certificate: it is not signed by its CA", other);
    case SSL_AD_CERTIFICATE_REQUIRED: return fmt::format("{} asks for a certificate", other);
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_ACCESS_DENIED: return fmt::format("{} refuses your certificate", other);
    case SSL_AD_HANDSHAKE_FAILURE: return fmt::format("{} finds nothing in common in TLS 1.3", other);
    default: break;
  }
  return fmt::format("{} ended TLS: {}", other, SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
}

}  // namespace

void set_fault_place(SSL* connection, CertificateFault* fault) { SSL_set_ex_data(connection, fault_index(), fault); }

int note_certificate_fault(int fine, X509_STORE_CTX* checked) {
  if (fine) return fine;
  auto* connection = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(checked, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* fault = connection ? static_cast<CertificateFault*>(SSL_get_ex_data(connection, fault_index())) : nullptr;
  if (!fault || fault->error) return fine;
  X509* own = X509_STORE_CTX_get0_cert(checked);
  X509* current = X509_STORE_CTX_get_current_cert(checked);
  fault->error = X509_STORE_CTX_get_error(checked);
  fault->depth = X509_STORE_CTX_get_error_depth(checked);
  if (own) fault->names = names_of(own);
  if (current)
    fault->until = day_text(fault->error == X509_V_ERR_CERT_NOT_YET_VALID ? X509_get0_notBefore(current)
                                                                          : X509_get0_notAfter(current));
  return fine;
}

bool alert_came() {
  unsigned long error = ERR_peek_error();
  return ERR_GET_LIB(error) == ERR_LIB_SSL && is_alert(ERR_GET_REASON(error));
}

std::string failure_text(bool client, const CertificateFault& fault, const Wanted& wanted) {
  unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (fault.error) return certificate_text(fault, wanted);
  int reason = ERR_GET_REASON(error);
  const char* other = client ? "the server" : "the client";
  if (ERR_GET_LIB(error) == ERR_LIB_SSL) {
    if (std::string alert = alert_text(reason, client); !alert.empty()) return alert;
    switch (reason) {
      case SSL_R_UNSUPPORTED_PROTOCOL:
      case SSL_R_WRONG_SSL_VERSION:
      case SSL_R_NO_PROTOCOLS_AVAILABLE: return fmt::format("{} does not speak TLS 1.3", other);
      case SSL_R_WRONG_VERSION_NUMBER:
      case SSL_R_HTTP_REQUEST:
      case SSL_R_HTTPS_PROXY_REQUEST:
      case SSL_R_BAD_RECORD_TYPE:
      case SSL_R_RECORD_LENGTH_MISMATCH: return fmt::format("{} does not speak TLS where it should", other);
      case SSL_R_BINDER_DOES_NOT_VERIFY: return fmt::format("{} does not have the key of this session", other);
      case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC: return "what arrived was changed on the way";
      default: break;
    }
  }
  const char* text = error ? ERR_reason_error_string(error) : nullptr;
  return fmt::format("TLS with {} failed: {}", other, text ? text : "unknown error");
}

}  // namespace gpuwire::tls
