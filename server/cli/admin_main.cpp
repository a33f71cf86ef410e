// gpuwire-admin: `gpuwire admin`.
#include <cstdio>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/cli/admin_server.hpp"
#include "server/cli/admin_text.hpp"
#include "server/config/configuration.hpp"
#include "server/config/quantities.hpp"
#include "server/identity/administration.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

constexpr int kExitFailed = 1;
constexpr const char* kUsualConfiguration = "/etc/gpuwire/server.toml";

struct AdminOptions {
  fs::path directory = default_identity_directory();
  std::vector<std::string> hosts;
  unsigned authority_days = kAuthorityDays, server_days = kServerDays, client_days = kClientDays;
  fs::path configuration;
  std::string tenant;
  bool token = false;
  std::string out;
  std::string authority_out;
  std::string revoke;
  JobToken job{.lifetime = std::chrono::hours(24)};
  std::string lifetime = "1d";
  bool end_sessions = false;
  bool replace_hosts = false;
  bool json = false;
  RunningServer server;
  std::optional<uint64_t> session;
  std::string reason;
};

WallTime now() { return std::chrono::system_clock::now(); }

int fail(const std::string& reason) {
  std::fprintf(stderr, "gpuwire admin: %s\n", reason.c_str());
  return kExitFailed;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

std::string own_host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 && *name ? name : "localhost";
}

// What was said, or this machine's name; and always the names by which a machine knows itself.
std::vector<std::string> with_own_names(std::vector<std::string> hosts) {
  if (hosts.empty()) hosts.push_back(own_host_name());
  for (const char* own : {"localhost", "127.0.0.1", "::1"})
    if (std::find(hosts.begin(), hosts.end(), own) == hosts.end()) hosts.emplace_back(own);
  return hosts;
}

int init(const AdminOptions& options) {
  InitOptions wanted{with_own_names(options.hosts), options.authority_days, options.server_days};
  if (auto made = init_identity(options.directory, wanted, now()); !made) return fail(made.error());
  auto facts = server_facts(options.directory);
  if (!facts) return fail(facts.error());
  print(admin_text::initialised(options.directory, *facts));
  return 0;
}

// What the tenant still lacks in the server's configuration, as far as that can be known.
std::string configuration_lines(const AdminOptions& options) {
  fs::path file = options.configuration;
  if (file.empty() && fs::exists(kUsualConfiguration)) file = kUsualConfiguration;
  if (file.empty()) return admin_text::configuration_lines(options.tenant, {});
  auto configuration = read_configuration(file);
  if (!configuration)
    return admin_text::configuration_lines(options.tenant, {});  // the server will say what is wrong with it
  for (const TenantConfiguration& tenant : configuration->tenants)
    if (tenant.name == options.tenant) return {};
  return admin_text::configuration_lines(options.tenant, file);
}

int add_tenant(const AdminOptions& options) {
  const bool to_stdout = options.out == "-";
  fs::path out = options.out.empty() ? options.tenant + (options.token ? ".token" : ".pem") : options.out;
  auto made = (options.token ? add_token : add_certificate)(options.directory, options.tenant, options.client_days,
                                                            to_stdout ? fs::path() : out, now());
  if (!made) return fail(made.error());
  if (to_stdout) {
    print(made->text);
    return 0;
  }
  print(admin_text::added(*made, out));
  // Whoever has a token needs the authority beside it; it is no secret, but a file that is there may be another lab's.
  fs::path authority = options.authority_out.empty() ? out.parent_path() / "ca.pem" : fs::path(options.authority_out);
  if (options.token && !fs::exists(authority))
    if (auto written = create_private_file(authority, made->authority); !written) return fail(written.error());
  print(admin_text::how_to_use(*made, out, authority) + configuration_lines(options));
  return 0;
}

int job_token(const AdminOptions& options) {
  JobToken wanted = options.job;
  auto lifetime_ms = parse_duration_ms(options.lifetime);
  if (!lifetime_ms) return fail("--lifetime: " + lifetime_ms.error());
  wanted.lifetime = std::chrono::seconds(*lifetime_ms / 1000);
  auto made = add_job_token(options.directory, wanted, now());
  if (!made) return fail(made.error());
  print(admin_text::job_token_json(*made));
  return 0;
}

// A running server sees the revocation by itself; what it is told here is who has done it.
int revoke(const AdminOptions& options) {
  const std::string& job = options.job.job;
  if (options.revoke.empty() == job.empty()) {
    std::fprintf(stderr, "gpuwire admin: revoke needs a tenant, a serial, a token id or --job\n");
    return kUsageError;
  }
  auto revoked = job.empty() ? revoke_credentials(options.directory, options.revoke, options.end_sessions, now())
                             : revoke_job(options.directory, job, options.end_sessions, now());
  if (!revoked) return fail(revoked.error());
  print(admin_text::revoked(job.empty() ? options.revoke : "job " + job, *revoked, options.end_sessions));
  for (const Credential& one : *revoked) {
    auto noted = options.server.note_revocation(options.directory, one.tenant, one.id);
    if (!noted && !options.server.control.empty())
      return fail("revoked, but not in the server's audit log: " + noted.error());
  }
  return 0;
}

int renew(const AdminOptions& options) {
  auto before = server_facts(options.directory);
  auto facts = renew_server(options.directory, options.hosts.empty() ? options.hosts : with_own_names(options.hosts),
                            options.replace_hosts, options.server_days, now());
  if (!facts) return fail(facts.error());
  print(admin_text::renewed(*facts));
  if (!before) return 0;
  std::erase_if(before->hosts, [&](const std::string& host) {
    return std::find(facts->hosts.begin(), facts->hosts.end(), host) != facts->hosts.end();
  });
  if (!before->hosts.empty())
    std::fprintf(stderr, "gpuwire admin: warning: %s\n", admin_text::names_gone(before->hosts).c_str());
  return 0;
}

int told(const tl::expected<std::string, std::string>& words) {
  if (!words) return fail(words.error());
  print(*words);
  return 0;
}

int sessions(const AdminOptions& options) { return told(options.server.sessions(options.json)); }
int reload(const AdminOptions& options) { return told(options.server.reload()); }

int end(const AdminOptions& options) {
  if (options.session.has_value() == !options.tenant.empty()) {
    std::fprintf(stderr, "gpuwire admin: end needs a session's number or --tenant\n");
    return kUsageError;
  }
  return told(options.session ? options.server.end_session(*options.session, options.reason)
                              : options.server.end_tenant(options.tenant, options.reason));
}

int list(const AdminOptions& options) {
  auto facts = server_facts(options.directory);
  if (!facts) return fail(facts.error());
  auto credentials = read_register(options.directory);
  if (!credentials) return fail(credentials.error());
  print(options.json ? admin_text::list_json(*facts, *credentials, now())
                     : admin_text::list(*facts, *credentials, now()));
  return 0;
}

CLI::Option* add_days(CLI::App& command, const char* name, unsigned& days, const char* text) {
  return command.add_option(name, days, text)
      ->type_name("N")
      ->check(CLI::Range(1u, kValidityDaysMax))
      ->capture_default_str();
}

void add_control(CLI::App& command, AdminOptions& options) {
  command
      .add_option("--control", options.server.control,
                  "The server's control socket; without it the only server that runs here")
      ->type_name("PATH");
}

void declare_init(CLI::App& app, AdminOptions& options) {
  CLI::App* command =
      app.add_subcommand("init", "Create the authority, the server's certificate and an empty register");
  command
      ->add_option("--host", options.hosts,
                   "A name or address by which clients reach this server; may be given several times. Default: this "
                   "machine's name")
      ->type_name("NAME");
  add_days(*command, "--ca-days", options.authority_days, "Validity of the authority, in days");
  add_days(*command, "--days", options.server_days, "Validity of the server's certificate, in days");
  command->footer(
      "localhost, 127.0.0.1 and ::1 are always among the names. Refused if there is an identity already: a\n"
      "second authority would invalidate everything that was issued.\n");
}

void declare_add(CLI::App& app, AdminOptions& options) {
  CLI::App* command = app.add_subcommand("add-tenant", "Issue a certificate or a token to a tenant");
  command->add_option("NAME", options.tenant, "The tenant, as in the server's configuration")->required();
  command->add_flag("--token", options.token, "A token (one line of text) instead of a certificate");
  add_days(*command, "--days", options.client_days, "Validity, in days");
  command
      ->add_option(
          "--out", options.out,
          "Where to write it, mode 0600; must not exist yet; - writes to standard output. Default: NAME.pem or "
          "NAME.token in the current folder")
      ->type_name("FILE");
  command
      ->add_option(
          "--ca-out", options.authority_out,
          "With --token: where to write the authority's certificate. Default: ca.pem beside FILE, unless it exists")
      ->type_name("FILE");
  command
      ->add_option("--config", options.configuration,
                   "The server's configuration, to check whether it has the tenant. Default: /etc/gpuwire/server.toml "
                   "if it exists")
      ->type_name("FILE")
      ->check(CLI::ExistingFile);
  command->footer(
      "A tenant may have any number of them: give every machine and every user their own, so that one can be\n"
      "revoked without the others. The file is the only copy; the server cannot produce it again.\n");
}

void declare_revoke(CLI::App& app, AdminOptions& options) {
  CLI::App* command = app.add_subcommand("revoke", "Revoke certificates and tokens: they are no longer accepted");
  command->add_option("WHAT", options.revoke,
                      "A tenant (everything issued to it), or a serial or token id (only that one)");
  command
      ->add_option("--job", options.job.job,
                   "Instead of WHAT: all tokens that job-token has made for this job; it is no error if there are none")
      ->type_name("JOB");
  command->add_flag("--end-sessions", options.end_sessions, "Also end the sessions that were begun with it");
  add_control(*command, options);
  command->footer(
      "Takes effect from the next login on: a running server notices the change by itself, without a signal.\n"
      "Programs that wait in the queue are refused. This cannot be undone; add-tenant issues a new one.\n");
}

void declare_job_token(CLI::App& app, AdminOptions& options) {
  CLI::App* command = app.add_subcommand("job-token", "Create a token for one job of a batch system, and print it");
  command->add_option("NAME", options.job.tenant, "The tenant whose job it is, as in the server's configuration")
      ->required();
  command
      ->add_option("--job", options.job.job, "The job, such as slurm/CLUSTER/17: letters, digits, and any of ._-:/@+")
      ->type_name("JOB")
      ->required();
  command->add_option("--gpus", options.job.gpus, "How many GPUs the job's sessions may have together")
      ->type_name("N")
      ->check(CLI::Range(1u, kJobGpusMax))
      ->capture_default_str();
  command->add_option("--lifetime", options.lifetime, "How long it is valid unless it is revoked, such as 90min or 2d")
      ->type_name("TIME")
      ->capture_default_str();
  command->footer(
      "Prints one JSON object: token, id, tenant, job, gpus, expires, ca (the authority's certificate). A job\n"
      "may have several tokens, one for each of its nodes: they share its GPUs. revoke --job JOB\n"
      "--end-sessions revokes all of them.\n");
}

void declare_renew(CLI::App& app, AdminOptions& options) {
  CLI::App* command = app.add_subcommand("renew", "Issue a new key and certificate to the server");
  command
      ->add_option("--host", options.hosts,
                   "A name or address by which clients reach this server; may be given several times. Added to "
                   "the existing names")
      ->type_name("NAME");
  command
      ->add_flag("--replace-hosts", options.replace_hosts,
                 "Replace the existing names: clients that use a name that is dropped will refuse the server")
      ->needs("--host");
  add_days(*command, "--days", options.server_days, "Validity, in days");
  command->footer(
      "Signed by the same authority: tenants notice nothing. For a tenant whose certificate expires, use\n"
      "add-tenant again and revoke the old serial.\n");
}

void declare_list(CLI::App& app, AdminOptions& options) {
  CLI::App* command = app.add_subcommand("list", "Show who has what, until when, and what has been revoked");
  command->add_flag("--json", options.json, "Print one JSON object instead of a table");
}

void declare_running(CLI::App& app, AdminOptions& options) {
  CLI::App* sessions = app.add_subcommand("sessions", "Show the sessions of a running server, and its queue");
  sessions->add_flag("--json", options.json, "Print a JSON array instead of tables");
  CLI::App* end = app.add_subcommand("end", "End a session of a running server, or all sessions of a tenant");
  end->add_option("SESSION", options.session, "The session's number, as `sessions` shows it");
  end->add_option("--tenant", options.tenant, "All sessions of this tenant, waiting ones included")->type_name("NAME");
  end->add_option("--reason", options.reason, "Shown to the client, and written to the audit log")->type_name("TEXT");
  CLI::App* reload = app.add_subcommand("reload", "Make a running server read its configuration again");
  reload->footer("Like SIGHUP, but mistakes in the file are reported here.\n");
  for (CLI::App* command : {sessions, end, reload}) add_control(*command, options);
}

void declare(CLI::App& app, AdminOptions& options) {
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--directory", options.directory, "The folder of the server's identity")
      ->type_name("DIR")
      ->capture_default_str();
  declare_init(app, options);
  declare_add(app, options);
  declare_job_token(app, options);
  declare_revoke(app, options);
  declare_renew(app, options);
  declare_list(app, options);
  declare_running(app, options);
  app.footer(admin_text::kFooter);  // after its commands: one that has no footer takes its parent's
}

int run(const CLI::App& app, const AdminOptions& options) {
  constexpr std::pair<const char*, int (*)(const AdminOptions&)> kCommands[] = {
      {"init", init},           {"add-tenant", add_tenant},
      {"job-token", job_token}, {"revoke", revoke},
      {"renew", renew},         {"list", list},
      {"sessions", sessions},   {"end", end},
      {"reload", reload}};
  for (auto [name, command] : kCommands)
    if (app.got_subcommand(name)) return command(options);
  return kUsageError;
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  AdminOptions options;
  CLI::App app(admin_text::kDescription, "gpuwire admin");
  declare(app, options);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  try {
    return run(app, options);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
