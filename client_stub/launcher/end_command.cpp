#include "client_stub/launcher/end_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "client_stub/launcher/own_programs.hpp"
#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/ask.hpp"
#include "client_stub/session/printable.hpp"
#include "command_line/command_line.hpp"
#include "protocol/wire/questions.hpp"

namespace gpuwire::launcher {
namespace {

constexpr const char* kEndDescription =
    "gpuwire end [OPTIONS] SESSION...\n\n"
    "Ends programs of your own tenant that run or wait at a server: those of these numbers, as `gpuwire ps` shows "
    "them, "
    "or all. A program is told why, and its next CUDA call returns an error. Programs of other tenants cannot be "
    "ended; if you are a user of a tenant, other users' neither.";

constexpr const char* kEndFooter =
    "\n"
    "On a terminal it asks before it ends anything; elsewhere it wants --yes.\n"
    "\n"
    "Exit code: 0; 1 with a line on stderr when one of them is not there, the answer was no, or a server cannot be "
    "reached or refuses; 2 for wrong usage.\n"
    "\n"
    "Examples:\n"
    "  gpuwire end 17          the program that gpuwire ps shows as 17\n"
    "  gpuwire end --all --yes everything that you, or your tenant if you are no user of it, run\n";

// The largest number of sessions in one query.
constexpr size_t kSessionsAtOnce = 8;

int fail(const std::string& error) {
  std::fprintf(stderr, "gpuwire end: %s\n", client::printable(error).c_str());
  return 1;
}

std::string line_of(const OwnProgram& program) {
  return fmt::format("session {}: {}{}, {}, at {}", program.session, program.name.empty() ? "a program" : program.name,
                     program.host.empty() ? "" : " on " + program.host, program.state, program.server);
}

int not_there(uint64_t session) { return fail(no_own_program(session, "end")); }

bool confirmed(const std::vector<OwnProgram>& programs) {
  for (const OwnProgram& program : programs) std::fprintf(stderr, "%s\n", line_of(program).c_str());
  std::fprintf(stderr, "End %s? [y/N] ", programs.size() == 1 ? "it" : "them");
  char answer[16] = "";
  return std::fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

// Returns the numbers without a program, or nothing after it has printed an error.
std::optional<std::vector<uint64_t>> end_some(const std::string& server, std::span<const uint64_t> sessions) {
  std::string query = "end text", answer, error;
  for (uint64_t session : sessions) query += fmt::format(" {}", session);
  if (client::ask_server(server, query, answer, error) != CUDA_SUCCESS) {
    const bool old = std::string_view(error).ends_with(wire::kUnknownQuestion);
    fail(old ? server + ": the server's release is too old to end programs for their users" : error);
    return std::nullopt;
  }
  std::vector<uint64_t> missing;
  for (uint64_t session : sessions)
    if (("\n" + answer).find(fmt::format("\nended {}\n", session)) == std::string::npos) missing.push_back(session);
  return missing;
}

int end_at(const std::string& server, std::span<const uint64_t> sessions) {
  int code = 0;
  for (size_t first = 0; first < sessions.size(); first += kSessionsAtOnce) {
    const auto some = sessions.subspan(first, std::min(kSessionsAtOnce, sessions.size() - first));
    const auto missing = end_some(server, some);
    if (!missing) return 1;
    for (uint64_t session : *missing) code = not_there(session);
    for (uint64_t session : some)
      if (std::find(missing->begin(), missing->end(), session) == missing->end())
        std::printf("session %llu at %s was told to end\n", static_cast<unsigned long long>(session), server.c_str());
  }
  return code;
}

int end_programs(const std::vector<OwnProgram>& programs) {
  std::map<std::string, std::vector<uint64_t>> by_server;
  for (const OwnProgram& program : programs) by_server[program.server].push_back(program.session);
  int code = 0;
  for (const auto& [server, sessions] : by_server) code = std::max(code, end_at(server, sessions));
  return code;
}

}  // namespace

int end_command(int argc, char** argv) {
  SessionOptions session;
  std::vector<uint64_t> sessions;
  bool all = false, yes = false;
  CommandLine app{kEndDescription, "gpuwire end"};
  app.footer({kSessionEnvironment, kConfigurationFiles, kEndFooter});
  add_session_options(app, session, false);
  app.add_option("SESSION", sessions, "Numbers of programs, as gpuwire ps shows them");
  app.add_flag("--all", all, "All programs of your tenant; of a user, their own");
  app.add_flag("-y,--yes", yes, "Do not ask");
  if (auto code = parse_command_line(app, argc, argv)) return *code;
  auto misused = [](const std::string& what) {
    std::fprintf(stderr, "gpuwire end: %s\n", what.c_str());
    return kUsageError;
  };
  if (all == !sessions.empty()) return misused("say either the numbers of programs (gpuwire ps shows yours) or --all");
  if (!yes && isatty(STDIN_FILENO) == 0) return misused("there is no terminal to ask on: say --yes");
  if (auto set = set_environment(session); !set) return misused(set.error());
  std::sort(sessions.begin(), sessions.end());
  sessions.erase(std::unique(sessions.begin(), sessions.end()), sessions.end());
  const std::vector<std::string> servers = named_servers();
  // The server decides whose programs these are.
  if (yes && !all && servers.size() == 1) return end_at(servers.front(), sessions);
  std::vector<OwnProgram> programs;
  for (const std::string& server : servers)
    if (auto added = add_own_programs(server, programs); !added) return fail(added.error());
  if (all && programs.empty()) {
    std::puts("no program that you may end runs or waits");
    return 0;
  }
  if (!all) {
    auto found = chosen_programs(programs, sessions, "end");
    if (!found) return fail(found.error());
    programs = std::move(*found);
  }
  if (!yes && !confirmed(programs)) return fail("nothing was ended");
  return end_programs(programs);
}

}  // namespace gpuwire::launcher
