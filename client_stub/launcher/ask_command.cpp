#include "client_stub/launcher/ask_command.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/ask.hpp"
#include "command_line/command_line.hpp"

namespace gpuwire::launcher {
namespace {

constexpr double kIntervalMinS = 0.2, kIntervalMaxS = 3600;

struct View {
  std::string_view name;
  const char* description;
};
constexpr View kViews[] = {
    {"queue",
     "Shows your tenant's programs on a server: which run and since when, which wait, at which place and for what."},
    {"top",
     "Shows, updated continuously, what your tenant's programs on a server do and how busy its GPUs are. Other tenants "
     "are not named. (Without --server, on a machine that runs a server, `gpuwire top` shows that server.)"},
    {"usage", "Shows what your tenant has used on a server by day: sessions, GPU hours, peak memory."}};

constexpr const char* kFooter =
    "\n"
    "The server identifies you as for `gpuwire run`: by certificate, token or Unix socket. Nothing is started there.\n"
    "\n"
    "Exit code: 0; 1 with a line on stderr when the server cannot be reached or refuses; 2 for wrong usage.";

struct AskOptions {
  bool json = false, csv = false, once = false;
  double interval_s = 2;
};

// Of what a server sends nothing moves the cursor.
std::string harmless(std::string text) {
  for (char& c : text) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f) c = '?';
  }
  return text;
}

std::string columns() {
  winsize size{};
  bool known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
  return known ? std::to_string(size.ws_col) : "0";
}

// False: it has been told why not.
bool ask(std::string_view view, const AskOptions& options, std::string& answer) {
  std::string error, query = std::string(view) + (options.json ? " json" : options.csv ? " csv" : " text ");
  if (!options.json && !options.csv) query += columns();
  if (client::ask_server(std::getenv("GPUWIRE_SERVER"), query, answer, error) == CUDA_SUCCESS) return true;
  std::fprintf(stderr, "gpuwire %s: %s\n", std::string(view).c_str(), harmless(error).c_str());
  return false;
}

int again_and_again(std::string_view view, const AskOptions& options) {
  // On a terminal each takes the place of the one before.
  const bool in_place = isatty(STDOUT_FILENO) && !options.json;
  std::string answer;
  if (!ask(view, options, answer)) return 1;  // from here on the server measures
  for (;;) {
    usleep(useconds_t(options.interval_s * 1e6));
    if (!ask(view, options, answer)) return 1;
    if (in_place) std::fputs("\x1b[H\x1b[2J", stdout);
    if (std::fputs(harmless(answer).c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 0;
    if (options.once) return 0;
  }
}

}  // namespace

int ask_command(std::string_view view, int argc, char** argv) {
  const View* shown = nullptr;
  for (const View& one : kViews) {
    if (one.name == view) shown = &one;
  }
  if (!shown) return kUsageError;
  AskOptions options;
  SessionOptions session;
  CLI::App app{shown->description, "gpuwire " + std::string(view)};
  app.footer(std::string(kSessionEnvironment) + kConfigurationFiles + kFooter);
  add_session_options(app, session, false);
  app.add_flag("--json", options.json, "Print JSON instead of tables");
  if (view == "usage") app.add_flag("--csv", options.csv, "Print comma-separated values instead of a table");
  if (view == "top") {
    app.add_option("--interval", options.interval_s, "Seconds between updates")
        ->type_name("S")
        ->check(CLI::Range(kIntervalMinS, kIntervalMaxS))
        ->capture_default_str();
    app.add_flag("--once", options.once, "Show one interval, then exit");
  }
  if (auto code = parse_command_line(app, argc, argv)) return *code;
  if (auto set = set_environment(session); !set) {
    std::fprintf(stderr, "gpuwire %s: %s\n", std::string(view).c_str(), set.error().c_str());
    return kUsageError;
  }
  if (view == "top") return again_and_again(view, options);
  std::string answer;
  if (!ask(view, options, answer)) return 1;
  std::fputs(harmless(answer).c_str(), stdout);
  return 0;
}

}  // namespace gpuwire::launcher
