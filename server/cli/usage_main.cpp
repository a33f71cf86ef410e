// gpuwire-usage: `gpuwire usage`.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "command_line/command_line.hpp"
#include "protocol/units/day.hpp"
#include "server/config/configuration.hpp"
#include "server/control/usage/usage.hpp"

namespace {

constexpr const char* kDescription =
    "Shows what each tenant, or each of its users, has used by day: sessions, GPU hours, peak memory. Reads\n"
    "the server's audit log, which only the administrator can. With --server it asks a server for your own\n"
    "tenant's usage.\n";

constexpr const char* kFooter =
    "A session counts on the day (UTC) on which it ended; running sessions are not counted yet.\n"
    "\n"
    "Exit status: 0; 1 with a line on stderr when the log cannot be read; 2 wrong usage.\n"
    "\n"
    "Examples:\n"
    "  gpuwire usage --since 2026-11-01\n"
    "  gpuwire usage --tenant course --by user\n"
    "  gpuwire usage --csv /var/log/gpuwire/audit.log.1 /var/log/gpuwire/audit.log\n"
    "  gpuwire usage --server gpuhost:9750            your own, from your own machine\n";

constexpr const char* kUsualConfiguration = "/etc/gpuwire/server.toml";

// Empty: an error was printed.
std::vector<std::string> audit_log_of(const std::string& file) {
  auto configuration = gpuwire::server::read_configuration(file);
  if (configuration && !configuration->audit_log.empty()) return {configuration->audit_log.string()};
  std::string why = configuration ? file + " does not name an audit_log" : configuration.error()[0];
  // If no server runs here, the caller may have meant a remote one.
  if (file == kUsualConfiguration)
    why +=
        "; name another server's configuration (--config FILE), an audit log, or a server elsewhere (--server SERVER)";
  else if (configuration) why += "; name the log";
  std::fprintf(stderr, "gpuwire usage: %s\n", why.c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  std::vector<std::string> files;
  std::string configuration = kUsualConfiguration, tenant, since, by = "tenant";
  bool json = false, csv = false;
  gpuwire::CommandLine app(kDescription, "gpuwire usage");
  app.footer(kFooter);
  app.add_option("FILE", files,
                 "Audit logs, oldest first; - reads standard input. Default: what the configuration says");
  app.add_option("--config", configuration, "The server's configuration, which names the audit log")
      .type_name("FILE")
      .capture_default_str();
  app.add_option("--tenant", tenant, "Only this tenant's").type_name("NAME");
  app.add_option("--by", by, "What a line is of: a tenant, or one of its users")
      .type_name("tenant|user")
      .one_of({"tenant", "user"})
      .capture_default_str();
  app.add_option("--since", since, "Only from this day on").type_name("YYYY-MM-DD");
  gpuwire::Option as_json = app.add_flag("--json", json, "Print a JSON array instead of a table");
  app.add_flag("--csv", csv, "Print comma-separated values instead of a table").excludes(as_json);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (!since.empty() && !gpuwire::units::is_day(since)) {
    std::fprintf(stderr, "gpuwire usage: --since must be a day, YYYY-MM-DD, got %s\n", since.c_str());
    return gpuwire::kUsageError;
  }
  if (files.empty() && (files = audit_log_of(configuration)).empty()) return 1;
  UsageBook book;
  for (const std::string& file : files) {
    if (file == "-") {
      book.read(std::cin);
      continue;
    }
    std::ifstream lines(file);
    if (!lines) {
      std::fprintf(stderr, "gpuwire usage: %s: %s\n", file.c_str(), std::strerror(errno));
      return 1;
    }
    book.read(lines);
  }
  std::fputs(usage_text(book,
                        json  ? UsageFormat::json
                        : csv ? UsageFormat::csv
                              : UsageFormat::text,
                        tenant, since, by == "user" ? UsageBy::user : UsageBy::tenant)
                 .c_str(),
             stdout);
  return 0;
}
