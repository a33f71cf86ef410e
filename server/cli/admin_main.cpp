// gpuwire-admin: `gpuwire admin`.
#include <cstdio>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/units/duration.hpp"
#include "server/cli/admin_drain.hpp"
#include "server/cli/admin_server.hpp"
#include "server/cli/admin_text.hpp"
#include "server/cli/admin_users.hpp"
#include "server/config/configuration.hpp"
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
  std::string tenant, user;
  NewUsers users;
  bool token = false;
  std::string out;
  std::string authority_out;
  std::string revoke;
  JobToken job{.lifetime = std::chrono::hours(24)};
  std::string lifetime = "1d";
  bool end_sessions = false;
  bool replace_hosts = false, authority = false;
  bool json = false;
  bool yes = false;
  RunningServer server;
  std::optional<uint64_t> session;
  std::string reason;
  unsigned gpu = 0;
  std::string timeout;
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

// Returns the given names, or this machine's name, and in any case the loopback names.
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

// Prints the lines that the server's configuration lacks for the tenant, as far as the command can tell.
std::string configuration_lines(const AdminOptions& options) {
  fs::path file = options.configuration;
  if (file.empty() && fs::exists(kUsualConfiguration)) file = kUsualConfiguration;
  if (file.empty()) return admin_text::configuration_lines(options.tenant, {});
  auto configuration = read_configuration(file);
  if (!configuration)
    return admin_text::configuration_lines(options.tenant, {});  // the server will report the mistake in it
  for (const TenantConfiguration& tenant : configuration->tenants)
    if (tenant.name == options.tenant) return {};
  return admin_text::configuration_lines(options.tenant, file);
}

int add_tenant(const AdminOptions& options) {
  const bool to_stdout = options.out == "-";
  const std::string name = options.user.empty() ? options.tenant : options.tenant + "-" + options.user;
  fs::path out = options.out.empty() ? name + (options.token ? ".token" : ".pem") : options.out;
  auto made = (options.token ? add_token : add_certificate)(options.directory, options.tenant, options.client_days,
                                                            to_stdout ? fs::path() : out, now(), options.user);
  if (!made) return fail(made.error());
  if (to_stdout) {
    print(made->text);
    return 0;
  }
  print(admin_text::added(*made, out));
  // The owner of a token also needs the authority's certificate. It is not secret, but an existing file may be another
  // lab's.
  fs::path authority = options.authority_out.empty() ? out.parent_path() / "ca.pem" : fs::path(options.authority_out);
  if (options.token && !fs::exists(authority))
    if (auto written = create_private_file(authority, made->authority); !written) return fail(written.error());
  print(admin_text::how_to_use(*made, out, authority) + configuration_lines(options));
  return 0;
}

int job_token(const AdminOptions& options) {
  JobToken wanted = options.job;
  auto lifetime_ms = units::parse_duration_ms(options.lifetime);
  if (!lifetime_ms) return fail("--lifetime: " + lifetime_ms.error());
  wanted.lifetime = std::chrono::seconds(*lifetime_ms / 1000);
  auto made = add_job_token(options.directory, wanted, now());
  if (!made) return fail(made.error());
  print(admin_text::job_token_json(*made));
  return 0;
}

// A running server detects the revocation by itself; this message names the caller for the audit log.
int revoke(const AdminOptions& options) {
  const std::string& job = options.job.job;
  if (options.revoke.empty() == job.empty()) {
    std::fprintf(stderr, "gpuwire admin: revoke needs a tenant, a user, a serial, a token id or --job\n");
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
  // The authority comes first, so that the server's new certificate may be valid until the authority's new end.
  if (options.authority)
    if (auto renewed = renew_authority_of(options.directory, options.authority_days, now()); !renewed)
      return fail(renewed.error());
  auto facts = renew_server(options.directory, options.hosts.empty() ? options.hosts : with_own_names(options.hosts),
                            options.replace_hosts, options.server_days, now());
  if (!facts) return fail(facts.error());
  print(admin_text::renewed(*facts, options.authority));
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
int web_code(const AdminOptions& options) { return told(options.server.web_code()); }
int reload(const AdminOptions& options) { return told(options.server.reload(options.yes)); }

int end(const AdminOptions& options) {
  if (options.session.has_value() == !options.tenant.empty()) {
    std::fprintf(stderr, "gpuwire admin: end needs a session's number or --tenant\n");
    return kUsageError;
  }
  return told(options.session ? options.server.end_session(*options.session, options.reason)
                              : options.server.end_tenant(options.tenant, options.reason));
}

using Moves = tl::expected<RunningServer::Moves, std::string>;

int move_memory(const AdminOptions& options, const char* name,
                Moves (RunningServer::*command)(std::optional<uint64_t>, const std::string&) const) {
  if (options.session.has_value() == !options.tenant.empty()) {
    std::fprintf(stderr, "gpuwire admin: %s needs a session's number or --tenant\n", name);
    return kUsageError;
  }
  const Moves moves = (options.server.*command)(options.session, options.tenant);
  if (!moves) return fail(moves.error());
  print(moves->text);
  return moves->all ? 0 : kExitFailed;
}
int suspend(const AdminOptions& options) { return move_memory(options, "suspend", &RunningServer::suspend); }
int resume(const AdminOptions& options) { return move_memory(options, "resume", &RunningServer::resume); }

int drain(const AdminOptions& options) { return drain_gpu(options.server, options.gpu, options.timeout); }
int undrain(const AdminOptions& options) { return undrain_gpu(options.server, options.gpu); }

int list(const AdminOptions& options) {
  auto facts = server_facts(options.directory);
  if (!facts) return fail(facts.error());
  auto credentials = read_register(options.directory);
  if (!credentials) return fail(credentials.error());
  print(options.json ? admin_text::list_json(*facts, *credentials, now())
                     : admin_text::list(*facts, *credentials, now()));
  return 0;
}

Option add_days(Command command, const char* name, unsigned& days, const char* text) {
  return command.add_option(name, days, text).type_name("N").between(1u, kValidityDaysMax).capture_default_str();
}

void add_control(Command command, AdminOptions& options) {
  command
      .add_option("--control", options.server.control,
                  "The server's control socket; without it the only server that runs here")
      .type_name("PATH");
}

void declare_init(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("init", "Create the authority, the server's certificate and an empty register");
  command
      .add_option("--host", options.hosts,
                  "A name or address by which clients reach this server; may be given several times. Default: this "
                  "machine's name")
      .type_name("NAME");
  add_days(command, "--ca-days", options.authority_days, "Validity of the authority, in days");
  add_days(command, "--days", options.server_days, "Validity of the server's certificate, in days");
  command.footer(
      "localhost, 127.0.0.1 and ::1 are always among the names. Refused if there is an identity already: a\n"
      "second authority would invalidate everything that was issued.\n");
}

void declare_add(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("add-tenant", "Issue a certificate or a token to a tenant");
  command.add_option("NAME", options.tenant, "The tenant, as in the server's configuration").required();
  command
      .add_option("--user", options.user,
                  "Who of the tenant gets it: shown, bounded and billed by this name. Default: nobody in particular")
      .type_name("USER");
  command.add_flag("--token", options.token, "A token (one line of text) instead of a certificate");
  add_days(command, "--days", options.client_days, "Validity, in days");
  command
      .add_option("--out", options.out,
                  "Where to write it, mode 0600; must not exist yet; - writes to standard output. Default: NAME.pem or "
                  "NAME.token in the current folder")
      .type_name("FILE");
  command
      .add_option(
          "--ca-out", options.authority_out,
          "With --token: where to write the authority's certificate. Default: ca.pem beside FILE, unless it exists")
      .type_name("FILE");
  command
      .add_option("--config", options.configuration,
                  "The server's configuration, to check whether it has the tenant. Default: /etc/gpuwire/server.toml "
                  "if it exists")
      .type_name("FILE")
      .existing_file();
  command.footer(
      "A tenant may have any number of them: give every machine and every user their own, so that one can be\n"
      "revoked without the others. The file is the only copy; the server cannot produce it again.\n");
}

void declare_users(Command app, AdminOptions& options) {
  Command users = app.add_subcommand("users", "Issue certificates or tokens to a list of a tenant's users");
  users.require_subcommand(1);
  Command command = users.add_subcommand("add", "Make what each user of a list needs, and the server's lines");
  NewUsers& wanted = options.users;
  command.add_option("--tenant", wanted.tenant, "The tenant, as in the server's configuration")
      .type_name("NAME")
      .required();
  command
      .add_option("--from", wanted.list,
                  "The list: one name in each line; what follows a # is left out; - reads standard input")
      .type_name("FILE")
      .required();
  command
      .add_option("--out", wanted.out,
                  "Where to write: each user gets a folder there, with what goes into ~/.config/gpuwire")
      .type_name("DIR")
      .required();
  command.add_flag("--token", wanted.token, "Tokens (one line of text) instead of certificates");
  add_days(command, "--days", wanted.days, "Validity, in days");
  command
      .add_option("--server", wanted.server,
                  "The server in the users' configuration. Default: the first name of its certificate, with its port")
      .type_name("HOST:PORT");
  command.add_option("--budget", wanted.budget, "GPU time that each user may use in a month, such as 10h/month")
      .type_name("TIME/month");
  command.add_option("--sessions-max", wanted.sessions_max, "How many programs each user may run at once")
      .type_name("N")
      .between(1u, 100'000u);
  command
      .add_option("--config", wanted.configuration,
                  "The server's configuration, to check what it lacks. Default: /etc/gpuwire/server.toml if it exists")
      .type_name("FILE")
      .existing_file();
  command.footer(
      "Run it again with a longer list: users who have a certificate or token that counts keep it, and only\n"
      "the others are made. revoke TENANT/USER takes back what one user has. A name is 1 to 64 of A-Z, a-z,\n"
      "0-9, '.', '_', '-'. If a name cannot be, or stands twice, nothing is made.\n"
      "\n"
      "Example:\n"
      "  gpuwire admin users add --tenant course --from students.txt --out bundles --budget 10h/month\n");
}

int users(const AdminOptions& options) { return add_users(options.directory, options.users, now()); }

void declare_revoke(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("revoke", "Revoke certificates and tokens: they are no longer accepted");
  command.add_option("WHAT", options.revoke,
                     "A tenant (everything issued to it), TENANT/USER (everything issued to that user), or a serial or "
                     "token id (only that one)");
  command
      .add_option("--job", options.job.job,
                  "Instead of WHAT: all tokens that job-token has made for this job; it is no error if there are none")
      .type_name("JOB");
  command.add_flag("--end-sessions", options.end_sessions, "Also end the sessions that were begun with it");
  add_control(command, options);
  command.footer(
      "Takes effect from the next login on: a running server notices the change by itself, without a signal.\n"
      "Programs that wait in the queue are refused. This cannot be undone; add-tenant issues a new one.\n");
}

void declare_job_token(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("job-token", "Create a token for one job of a batch system, and print it");
  command.add_option("NAME", options.job.tenant, "The tenant whose job it is, as in the server's configuration")
      .required();
  command.add_option("--job", options.job.job, "The job, such as slurm/CLUSTER/17: letters, digits, and any of ._-:/@+")
      .type_name("JOB")
      .required();
  command.add_option("--gpus", options.job.gpus, "How many GPUs the job's sessions may have together")
      .type_name("N")
      .between(1u, kJobGpusMax)
      .capture_default_str();
  command.add_option("--lifetime", options.lifetime, "How long it is valid unless it is revoked, such as 90min or 2d")
      .type_name("TIME")
      .capture_default_str();
  command.footer(
      "Prints one JSON object: token, id, tenant, job, gpus, expires, ca (the authority's certificate). A job\n"
      "may have several tokens, one for each of its nodes: they share its GPUs. revoke --job JOB\n"
      "--end-sessions revokes all of them.\n");
}

void declare_renew(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("renew", "Issue a new key and certificate to the server");
  command
      .add_option("--host", options.hosts,
                  "A name or address by which clients reach this server; may be given several times. Added to "
                  "the existing names")
      .type_name("NAME");
  command
      .add_flag("--replace-hosts", options.replace_hosts,
                "Replace the existing names: clients that use a name that is dropped will refuse the server")
      .needs("--host");
  add_days(command, "--days", options.server_days, "Validity, in days");
  command.add_flag("--ca", options.authority,
                   "Renew the authority's own certificate first, with the same key: what it has signed goes on "
                   "counting, and tenants get the new one with their next certificate or token");
  add_days(command, "--ca-days", options.authority_days, "With --ca: validity of the authority, in days");
  command.footer(
      "Signed by the same authority: tenants notice nothing, and sessions go on. For a tenant whose certificate\n"
      "expires, use add-tenant again and revoke the old serial.\n");
}

void declare_list(Command app, AdminOptions& options) {
  Command command = app.add_subcommand("list", "Show who has what, until when, and what has been revoked");
  command.add_flag("--json", options.json, "Print one JSON object instead of a table");
}

void declare_running(Command app, AdminOptions& options) {
  Command sessions = app.add_subcommand("sessions", "Show the sessions of a running server, and its queue");
  sessions.add_flag("--json", options.json, "Print a JSON array instead of tables");
  Command end = app.add_subcommand("end", "End a session of a running server, or all sessions of a tenant");
  end.add_option("SESSION", options.session, "The session's number, as `sessions` shows it");
  end.add_option("--tenant", options.tenant, "All sessions of this tenant, waiting ones included").type_name("NAME");
  end.add_option("--reason", options.reason, "Shown to the client, and written to the audit log").type_name("TEXT");
  Command suspend = app.add_subcommand("suspend", "Move the device memory of idle sessions to the server's own memory");
  suspend.add_option("SESSION", options.session, "The session's number, as `sessions` shows it");
  suspend.add_option("--tenant", options.tenant, "All sessions of this tenant").type_name("NAME");
  suspend.footer(
      "The program of a suspended session goes on with its next call, which brings the memory back. The command\n"
      "waits for the move, and says for each session why it was not suspended. Exit status 1: a session was\n"
      "not suspended. docs/suspending.md has more.\n");
  Command resume = app.add_subcommand("resume", "Move the device memory of suspended sessions back to their GPUs");
  resume.add_option("SESSION", options.session, "The session's number, as `sessions` shows it");
  resume.add_option("--tenant", options.tenant, "All sessions of this tenant").type_name("NAME");
  Command drain = app.add_subcommand("drain", "Take a GPU out of use: suspend its sessions, and begin none on it");
  drain.add_option("GPU", options.gpu, "The GPU's number, as `gpuwire status` shows it").required();
  drain
      .add_option("--timeout", options.timeout,
                  "How long to wait until all sessions are suspended, such as 10min or 0s. Default: until they are")
      .type_name("TIME");
  drain.footer(
      "A session that works is suspended as soon as it is idle; the command says what it waits for. Its end, by\n"
      "--timeout or Ctrl-C, ends the drain no more than a restart of the server does: undrain does. Exit status\n"
      "1: a session was not suspended in time. docs/suspending.md has more.\n");
  Command undrain = app.add_subcommand("undrain", "Take a drained GPU into use again");
  undrain.add_option("GPU", options.gpu, "The GPU's number, as `gpuwire status` shows it").required();
  Command reload = app.add_subcommand("reload", "Make a running server read its configuration again");
  reload.add_flag("--yes", options.yes, "Also when tenants who have sessions are gone from the file");
  reload.footer("Like SIGHUP, but mistakes in the file are reported here, and what has changed.\n");
  Command web_code =
      app.add_subcommand("web-code", "Print a code with which an administrator signs in to the web page");
  web_code.footer(
      "The page is where web_listen of the server's configuration says. A code signs in once, within ten\n"
      "minutes; whoever signs in with it sees all tenants and may end any session. Tenants sign in with their\n"
      "tokens.\n");
  for (Command command : {sessions, end, suspend, resume, drain, undrain, reload, web_code})
    add_control(command, options);
}

void declare(Command app, AdminOptions& options) {
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--directory", options.directory, "The folder of the server's identity")
      .type_name("DIR")
      .capture_default_str();
  declare_init(app, options);
  declare_add(app, options);
  declare_users(app, options);
  declare_job_token(app, options);
  declare_revoke(app, options);
  declare_renew(app, options);
  declare_list(app, options);
  declare_running(app, options);
  app.footer(admin_text::kFooter);  // after its commands: a command without a footer takes its parent's
}

int run(const Command& app, const AdminOptions& options) {
  constexpr std::pair<const char*, int (*)(const AdminOptions&)> kCommands[] = {
      {"init", init},       {"add-tenant", add_tenant}, {"users", users},      {"job-token", job_token},
      {"revoke", revoke},   {"renew", renew},           {"list", list},        {"sessions", sessions},
      {"end", end},         {"suspend", suspend},       {"resume", resume},    {"drain", drain},
      {"undrain", undrain}, {"reload", reload},         {"web-code", web_code}};
  for (auto [name, command] : kCommands)
    if (app.got_subcommand(name)) return command(options);
  return kUsageError;
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  AdminOptions options;
  gpuwire::CommandLine app(admin_text::kDescription, "gpuwire admin");
  declare(app, options);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  try {
    return run(app, options);
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
