#include "server/identity/administration.hpp"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

using Failure = tl::unexpected<std::string>;

tl::expected<Authority, std::string> load_authority(const fs::path& directory) {
  auto certificate = read_private_file(directory / kAuthorityCertificateFile, kPemBytesMax);
  if (!certificate)
    return Failure(fs::exists(directory / kAuthorityCertificateFile) ? certificate.error()
                                                                     : why_no_identity(directory));
  auto key = read_private_file(directory / kAuthorityKeyFile, kPemBytesMax);
  if (!key) return Failure(key.error());
  auto authority = read_authority(*certificate, *key);
  if (!authority)
    return Failure(fmt::format("{}: {}", (directory / kAuthorityCertificateFile).string(), authority.error()));
  return authority;
}

// The key is written first, so that a server that is notified of the new certificate finds its key. A reader between
// the two writes detects that certificate and key do not match, keeps its present pair, and reads again at the next
// change.
tl::expected<void, std::string> write_server(const fs::path& directory, const Issued& server) {
  if (auto written = replace_private_file(directory / kServerKeyFile, server.key_pem); !written) return written;
  return replace_private_file(directory / kServerCertificateFile, server.certificate_pem);
}

std::string subject_of(const X509* certificate) {
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof name);
  return name;
}

tl::expected<void, std::string> may_be_user(const std::string& user) {
  if (user.empty() || is_user_name(user)) return {};
  return Failure(fmt::format(
      "\"{}\" is not a user name: it must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-', and not begin with a dot", user));
}

// Makes a token with further fields from the caller.
tl::expected<NewCredential, std::string> make_token(const fs::path& directory, const std::string& tenant, WallTime now,
                                                    WallTime expires) {
  if (!is_tenant_name(tenant))
    return Failure(
        fmt::format("\"{}\" is not a tenant name: it must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'", tenant));
  auto authority_pem = read_private_file(directory / kAuthorityCertificateFile, kPemBytesMax);
  if (!authority_pem)
    return Failure(fs::exists(directory / kAuthorityCertificateFile) ? authority_pem.error()
                                                                     : why_no_identity(directory));
  auto token = new_token();
  if (!token) return Failure(token.error());
  NewCredential made;
  const TokenHash hash = hash_token(*token);
  made.credential = {.kind = CredentialKind::token,
                     .id = token_id(hash),
                     .tenant = tenant,
                     .user = {},
                     .issued = now,
                     .expires = expires,
                     .hash = hash};
  made.text = std::move(*token);
  made.authority = std::move(*authority_pem);
  return made;
}

// Writes the tenant's file, then the register; removes the file again if the register cannot be written.
tl::expected<void, std::string> enter(const fs::path& directory, const NewCredential& made, const fs::path& out) {
  auto credentials = read_register(directory);
  if (!credentials) return Failure(credentials.error());
  credentials->forget_jobs(made.credential.issued - kJobTokensKeptFor);
  if (!credentials->add(made.credential))
    return Failure(fmt::format("{}: no room for another credential", (directory / kRegisterFile).string()));
  if (!out.empty())
    if (auto written = create_private_file(out, made.text); !written) return written;
  auto entered = write_register(directory, *credentials);
  if (!entered && !out.empty()) {
    std::error_code ignored;
    fs::remove(out, ignored);
  }
  return entered;
}

std::string heading(const X509* authority, const Credential& credential) {
  return fmt::format("# gpuwire: tenant {}{}, {} {}, given by \"{}\", until {}\n", credential.tenant,
                     credential.user.empty() ? std::string() : ", user " + credential.user,
                     credential.kind == CredentialKind::token ? "token" : "certificate", credential.id,
                     subject_of(authority), to_words(credential.expires));
}

}  // namespace

tl::expected<void, std::string> init_identity(const fs::path& directory, const InitOptions& options, WallTime now) {
  if (options.hosts.empty()) return Failure("no host name");
  if (auto made = make_identity_directory(directory); !made) return made;
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  for (std::string_view file :
       {kAuthorityCertificateFile, kAuthorityKeyFile, kServerCertificateFile, kServerKeyFile, kRegisterFile})
    if (fs::exists(fs::symlink_status(directory / file)))
      return Failure(fmt::format(
          "{}: there is an identity already; another one would invalidate every certificate that was issued",
          (directory / file).string()));
  auto authority = make_authority(options.hosts.front(), {now, options.authority_days});
  if (!authority) return Failure(authority.error());
  auto signer = read_authority(authority->certificate_pem, authority->key_pem);
  if (!signer) return Failure(signer.error());
  auto server = issue_server_certificate(*signer, options.hosts, {now, options.server_days});
  if (!server) return Failure(server.error());
  if (auto written = replace_private_file(directory / kAuthorityKeyFile, authority->key_pem); !written) return written;
  if (auto written = replace_private_file(directory / kAuthorityCertificateFile, authority->certificate_pem); !written)
    return written;
  if (auto written = write_server(directory, *server); !written) return written;
  return write_register(directory, Register{});
}

tl::expected<NewCredential, std::string> add_certificate(const fs::path& directory, const std::string& tenant,
                                                         unsigned days, const fs::path& out, WallTime now,
                                                         const std::string& user) {
  if (auto may = may_be_user(user); !may) return Failure(may.error());
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  auto authority = load_authority(directory);
  if (!authority) return Failure(authority.error());
  auto issued = issue_client_certificate(*authority, tenant, {now, days});
  if (!issued) return Failure(issued.error());
  auto authority_pem = read_private_file(directory / kAuthorityCertificateFile, kPemBytesMax);
  if (!authority_pem) return Failure(authority_pem.error());
  NewCredential made;
  made.credential = {.kind = CredentialKind::certificate,
                     .id = issued->serial,
                     .tenant = tenant,
                     .user = user,
                     .issued = now,
                     .expires = issued->expires};
  made.text = heading(authority->certificate.get(), made.credential) + issued->key_pem + issued->certificate_pem +
              *authority_pem;
  made.authority = *authority_pem;
  if (auto entered = enter(directory, made, out); !entered) return Failure(entered.error());
  return made;
}

tl::expected<NewCredential, std::string> add_token(const fs::path& directory, const std::string& tenant, unsigned days,
                                                   const fs::path& out, WallTime now, const std::string& user) {
  if (auto may = may_be_user(user); !may) return Failure(may.error());
  if (days < 1 || days > kValidityDaysMax)
    return Failure(fmt::format("the validity must be 1 to {1} days, got {0}", days, kValidityDaysMax));
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  auto made = make_token(directory, tenant, now, now + std::chrono::hours(24) * days);
  if (!made) return made;
  made->credential.user = user;
  auto authority = read_certificate(made->authority);
  if (!authority) return Failure(authority.error());
  made->text = heading(authority->get(), made->credential) + made->text + "\n";
  if (auto entered = enter(directory, *made, out); !entered) return Failure(entered.error());
  return made;
}

tl::expected<NewCredential, std::string> add_job_token(const fs::path& directory, const JobToken& wanted,
                                                       WallTime now) {
  if (!is_job_name(wanted.job))
    return Failure(fmt::format("\"{:.{}}\" is not a job name: it must be 1 to {} letters, digits, or any of ._-:/@+",
                               wanted.job, kJobNameBytesMax, kJobNameBytesMax));
  if (wanted.gpus < 1 || wanted.gpus > kJobGpusMax)
    return Failure(fmt::format("a job must have 1 to {1} GPUs, got {0}", wanted.gpus, kJobGpusMax));
  if (wanted.lifetime < kJobLifetimeMin || wanted.lifetime > kJobLifetimeMax)
    return Failure(fmt::format("the lifetime must be {1} to {2} s, got {0}", wanted.lifetime.count(),
                               kJobLifetimeMin.count(), kJobLifetimeMax.count()));
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  auto made = make_token(directory, wanted.tenant, now, now + wanted.lifetime);
  if (!made) return made;
  made->credential.job = wanted.job;
  made->credential.gpus = wanted.gpus;
  if (auto entered = enter(directory, *made, {}); !entered) return Failure(entered.error());
  return made;
}

tl::expected<std::vector<Credential>, std::string> revoke_job(const fs::path& directory, const std::string& job,
                                                              bool end_sessions, WallTime now) {
  if (!is_job_name(job)) return Failure(fmt::format("\"{:.{}}\" is not a job name", job, kJobNameBytesMax));
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  auto credentials = read_register(directory);
  if (!credentials) return Failure(credentials.error());
  std::vector<Credential> revoked = credentials->revoke_job(job, end_sessions, now);
  if (auto written = write_register(directory, *credentials); !written) return Failure(written.error());
  return revoked;
}

tl::expected<std::vector<Credential>, std::string> revoke_credentials(const fs::path& directory,
                                                                      const std::string& name_or_id, bool end_sessions,
                                                                      WallTime now) {
  auto lock = IdentityLock::take(directory);
  if (!lock) return Failure(lock.error());
  auto credentials = read_register(directory);
  if (!credentials) return Failure(credentials.error());
  if (!credentials->knows(name_or_id))
    return Failure(fmt::format("no tenant, user, serial or token id \"{}\" in {}", name_or_id,
                               (directory / kRegisterFile).string()));
  std::vector<Credential> revoked = credentials->revoke(name_or_id, end_sessions, now);
  if (auto written = write_register(directory, *credentials); !written) return Failure(written.error());
  return revoked;
}

tl::expected<ServerFacts, std::string> server_facts(const fs::path& directory) {
  std::error_code error;
  if (!fs::exists(directory / kAuthorityCertificateFile, error) && !error) return Failure(why_no_identity(directory));
  auto read = [&](std::string_view file) -> tl::expected<CertificateHandle, std::string> {
    auto text = read_private_file(directory / file, kPemBytesMax);
    if (!text) return Failure(text.error());
    auto certificate = read_certificate(*text);
    if (!certificate) return Failure(fmt::format("{}: {}", (directory / file).string(), certificate.error()));
    return certificate;
  };
  auto authority = read(kAuthorityCertificateFile);
  if (!authority) return Failure(authority.error());
  auto server = read(kServerCertificateFile);
  if (!server) return Failure(server.error());
  return ServerFacts{subject_of(authority->get()), expiry_of(authority->get()), expiry_of(server->get()),
                     hosts_of(server->get())};
}

tl::expected<ServerFacts, std::string> renew_authority_of(const fs::path& directory, unsigned days, WallTime now) {
  {
    auto lock = IdentityLock::take(directory);
    if (!lock) return Failure(lock.error());
    auto authority = load_authority(directory);
    if (!authority) return Failure(authority.error());
    auto renewed = renew_authority(*authority, {now, days});
    if (!renewed) return Failure(renewed.error());
    if (auto written = replace_private_file(directory / kAuthorityCertificateFile, renewed->certificate_pem); !written)
      return Failure(written.error());
  }
  return server_facts(directory);
}

tl::expected<ServerFacts, std::string> renew_server(const fs::path& directory, const std::vector<std::string>& hosts,
                                                    bool replace_hosts, unsigned days, WallTime now) {
  {
    auto lock = IdentityLock::take(directory);
    if (!lock) return Failure(lock.error());
    auto authority = load_authority(directory);
    if (!authority) return Failure(authority.error());
    auto before = server_facts(directory);
    if (!before && hosts.empty()) return Failure(before.error() + "; --host says for which names");
    std::vector<std::string> names =
        before && !(replace_hosts && !hosts.empty()) ? before->hosts : std::vector<std::string>();
    for (const std::string& host : hosts)
      if (std::find(names.begin(), names.end(), host) == names.end()) names.push_back(host);
    auto server = issue_server_certificate(*authority, names, {now, days});
    if (!server) return Failure(server.error());
    if (auto written = write_server(directory, *server); !written) return Failure(written.error());
  }
  return server_facts(directory);
}

}  // namespace gpuwire::server
