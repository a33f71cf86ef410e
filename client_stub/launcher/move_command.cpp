#include "client_stub/launcher/move_command.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <sstream>
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

constexpr const char* kSuspendDescription =
    "gpuwire suspend [OPTIONS] [SESSION...]\n\n"
    "Moves the GPU memory of your own idle programs to the server's own memory: those of these numbers, as `gpuwire "
    "ps` shows them, or your only one. The programs go on running, and get the memory back with their next call.";

constexpr const char* kResumeDescription =
    "gpuwire resume [OPTIONS] [SESSION...]\n\n"
    "Moves the GPU memory of your own suspended programs back to their GPUs, before they need it: those of these "
    "numbers, as `gpuwire ps` shows them, or your only suspended one.";

constexpr const char* kMoveFooter =
    "\n"
    "The command waits for the move, and prints a line for each program: the result, or why it was not done. If you "
    "are a user of a tenant, other users' programs are not yours.\n"
    "\n"
    "Exit code: 0; 1 when a program was not moved, or with a line on stderr when one is not there, or a server cannot "
    "be reached or refuses; 2 for wrong usage.";

struct Move {
  const char* name;  // of the command and of the query
  const char* description;
  // Whether the command without numbers chooses among such programs.
  bool (*may_mean)(const OwnProgram& program);
  const char* none;  // the error if there is no such program
};

bool may_suspend(const OwnProgram& program) {
  return program.suspension.empty() && (program.state == "running" || program.state == "detached");
}
bool may_resume(const OwnProgram& program) { return program.suspension == "suspended"; }

constexpr Move kSuspend{"suspend", kSuspendDescription, may_suspend, "no program that you may suspend runs"};
constexpr Move kResume{"resume", kResumeDescription, may_resume, "no program that you may resume is suspended"};

int fail(const Move& move, const std::string& error) {
  std::fprintf(stderr, "gpuwire %s: %s\n", move.name, client::printable(error).c_str());
  return 1;
}

// Prints the line of the server's answer. Returns the session if the move was done or has a reason; 0: neither.
uint64_t print_line(const std::string& line, bool& done) {
  std::istringstream words(line);
  std::string word, text;
  uint64_t session = 0;
  words >> word >> session;
  std::getline(words >> std::ws, text);
  done = word == "done";
  if (session == 0 || (!done && word != "stays")) return 0;
  std::printf("session %llu: %s%s\n", static_cast<unsigned long long>(session),
              done ? "" : "not done: ", client::printable(text).c_str());
  return session;
}

int move_some(const Move& move, const std::string& server, std::span<const uint64_t> sessions) {
  std::string query = fmt::format("{} text", move.name), answer, error;
  for (uint64_t session : sessions) query += fmt::format(" {}", session);
  if (client::ask_server(server, query, answer, error) != CUDA_SUCCESS) {
    const bool old = std::string_view(error).ends_with(wire::kUnknownQuestion);
    return fail(move, old ? server + ": the server's release is too old to suspend programs for their users" : error);
  }
  int code = 0;
  std::set<uint64_t> answered;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    bool done = false;
    if (const uint64_t session = print_line(line, done); session != 0) {
      answered.insert(session);
      if (!done) code = 1;
    }
  }
  for (uint64_t session : sessions)
    if (!answered.contains(session)) code = fail(move, no_own_program(session, move.name));
  return code;
}

int move_at(const Move& move, const std::string& server, std::span<const uint64_t> sessions) {
  int code = 0;
  for (size_t first = 0; first < sessions.size(); first += kSessionsAtOnce)
    code = std::max(code, move_some(move, server,
                                    sessions.subspan(first).first(std::min(kSessionsAtOnce, sessions.size() - first))));
  return code;
}

// Returns the only program that the command can mean. The error says why there is none.
tl::expected<std::vector<OwnProgram>, std::string> only_program(const Move& move, std::vector<OwnProgram> programs) {
  std::erase_if(programs, [&](const OwnProgram& one) { return !move.may_mean(one); });
  if (programs.empty()) return tl::unexpected(std::string(move.none));
  if (programs.size() > 1)
    return tl::unexpected(fmt::format("you may {} {} programs: say the numbers (gpuwire ps shows them) or --all",
                                      move.name, programs.size()));
  return programs;
}

int move_command(const Move& move, int argc, char** argv) {
  SessionOptions session;
  std::vector<uint64_t> sessions;
  bool all = false;
  CommandLine app{move.description, fmt::format("gpuwire {}", move.name)};
  app.footer({kSessionEnvironment, kConfigurationFiles, kMoveFooter});
  add_session_options(app, session, false);
  app.add_option("SESSION", sessions, "Numbers of programs, as gpuwire ps shows them");
  app.add_flag("--all", all, "All programs of your tenant; of a user, their own");
  if (auto code = parse_command_line(app, argc, argv)) return *code;
  auto misused = [&](const std::string& what) {
    std::fprintf(stderr, "gpuwire %s: %s\n", move.name, what.c_str());
    return kUsageError;
  };
  if (all && !sessions.empty()) return misused("say either the numbers of programs (gpuwire ps shows yours) or --all");
  if (auto set = set_environment(session); !set) return misused(set.error());
  std::sort(sessions.begin(), sessions.end());
  sessions.erase(std::unique(sessions.begin(), sessions.end()), sessions.end());
  const std::vector<std::string> servers = named_servers();
  // The server decides whose programs these are.
  if (!sessions.empty() && servers.size() == 1) return move_at(move, servers.front(), sessions);
  std::vector<OwnProgram> programs;
  for (const std::string& server : servers)
    if (auto added = add_own_programs(server, programs); !added) return fail(move, added.error());
  if (all) {
    std::erase_if(programs, [&](const OwnProgram& one) { return !move.may_mean(one); });
    if (programs.empty()) {
      std::puts(move.none);
      return 0;
    }
  } else {
    auto found =
        sessions.empty() ? only_program(move, std::move(programs)) : chosen_programs(programs, sessions, move.name);
    if (!found) return fail(move, found.error());
    programs = std::move(*found);
  }
  std::map<std::string, std::vector<uint64_t>> by_server;
  for (const OwnProgram& program : programs) by_server[program.server].push_back(program.session);
  int code = 0;
  for (const auto& [server, numbers] : by_server) code = std::max(code, move_at(move, server, numbers));
  return code;
}

}  // namespace

int suspend_command(int argc, char** argv) { return move_command(kSuspend, argc, argv); }
int resume_command(int argc, char** argv) { return move_command(kResume, argc, argv); }

}  // namespace gpuwire::launcher
