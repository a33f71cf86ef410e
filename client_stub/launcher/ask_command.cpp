#include "client_stub/launcher/ask_command.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client_stub/launcher/question.hpp"
#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/ask.hpp"
#include "command_line/command_line.hpp"
#include "command_line/terminal/terminal.hpp"
#include "command_line/terminal/top_view.hpp"
#include "protocol/units/day.hpp"
#include "protocol/units/json.hpp"
#include "protocol/wire/questions.hpp"
#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::launcher {
namespace {

constexpr double kIntervalMinS = 0.2, kIntervalMaxS = 3600;
constexpr double kChangeS = 0.1;  // after a key: a server answers a tenant 20 questions a second

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
    "The server identifies you as for `gpuwire run`: by certificate, token or Unix socket. Nothing is started there. "
    "Of several servers `queue` and `usage` ask each, `top` the first.\n"
    "\n"
    "Exit code: 0; 1 with a line on stderr when the server cannot be reached or refuses; 2 for wrong usage.";

struct AskOptions {
  bool json = false, csv = false, once = false;
  double interval_s = 2;
  std::string sort = kTopSorts[0], by = "tenant";
  std::string since;  // a day; empty: the whole usage
};

// Only line ends of the server's text may move the cursor.
std::string harmless(std::string_view text) {
  std::string shown;
  for (;;) {
    const size_t end = text.find('\n');
    std::string line(text.substr(0, end));
    wire::blank_unshown(line);
    shown += line;
    if (end == text.npos) return shown;
    shown += '\n';
    text.remove_prefix(end + 1);
  }
}

unsigned columns() {
  winsize size{};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::string query(std::string_view view, const AskOptions& options, std::string_view sort, size_t columns) {
  const std::string format = options.json ? " json" : options.csv ? " csv" : " text";
  // Separate queries: an older server refuses them, instead of ignoring the user or the day.
  const std::string since = options.since.empty() ? "" : " " + options.since;
  if (options.by == "user") return "usage-by-user" + format + since;
  if (!options.since.empty()) return "usage-since" + format + since;
  std::string query = std::string(view) + format;
  if (!options.csv || view == "usage") query += " " + std::to_string(columns);
  if (view == "top") query += " " + std::string(sort);
  return query;
}

// The command's line about `error` of a server that is too old for the query.
std::string cannot_answer(const std::string& server, const AskOptions& options, const std::string& error) {
  if (!std::string_view(error).ends_with(wire::kUnknownQuestion)) return error;
  if (options.by == "user")
    return server +
           ": the server's release is too old to show usage by user; without --by user it shows the whole tenant's";
  if (!options.since.empty())
    return server + ": the server's release is too old to show usage since a day; without --since it shows every day";
  return error;
}

int fail(std::string_view view, const std::string& error) {
  std::fprintf(stderr, "gpuwire %s: %s\n", std::string(view).c_str(), harmless(error).c_str());
  return 1;
}

// Returns false after it has printed an error.
bool ask(const std::string& server, std::string_view view, const AskOptions& options, std::string& answer) {
  std::string error;
  if (client::ask_server(server, query(view, options, options.sort, columns()), answer, error) == CUDA_SUCCESS)
    return true;
  fail(view, cannot_answer(server, options, error));
  return false;
}

// Prints each server's answer under the server's name; with --json one array of objects `server` and `answer`.
int ask_all(std::string_view view, const AskOptions& options, const std::vector<std::string>& servers) {
  int code = 0;
  auto all = nlohmann::ordered_json::array();
  for (const std::string& server : servers) {
    std::string answer;
    if (!ask(server, view, options, answer)) {
      code = 1;
      continue;
    }
    if (!options.json) {
      std::printf("%s%s\n%s", server == servers.front() ? "" : "\n", server.c_str(), harmless(answer).c_str());
      continue;
    }
    auto told = parse_ordered_json(answer);
    if (told.is_discarded()) {
      code = fail(view, server + ": the server's answer cannot be read");
      continue;
    }
    all.push_back({{"server", server}, {"answer", std::move(told)}});
  }
  if (options.json) std::puts(dump_json(all, 2, true, JsonErrorHandler::replace).c_str());
  return code;
}

int again_and_again(const AskOptions& options) {
  std::string answer;
  if (!ask(named_servers().front(), "top", options, answer)) return 1;  // from here on the server measures
  for (;;) {
    usleep(useconds_t(options.interval_s * 1e6));
    if (!ask(named_servers().front(), "top", options, answer)) return 1;
    if (std::fputs(harmless(answer).c_str(), stdout) < 0 || std::fflush(stdout) != 0) return 0;
    if (options.once) return 0;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

// A timer as a descriptor.
class Timer {
 public:
  Timer() : descriptor_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { close(descriptor_); }

  int descriptor() const { return descriptor_; }
  // The descriptor becomes readable after this time, until the next call.
  void set(double seconds) {
    itimerspec when{};
    when.it_value.tv_sec = time_t(seconds);
    when.it_value.tv_nsec = long((seconds - double(when.it_value.tv_sec)) * 1e9);
    timerfd_settime(descriptor_, 0, &when, nullptr);
  }

 private:
  int descriptor_;
};

// Waits for the server at most as long as a login may take.
std::string end_session(const std::string& number) {
  Question question("end text " + number);
  while (!question.read()) {}
  if (!question.well()) return harmless(question.text());
  if (question.text().starts_with("ended ")) return "session " + number + " was told to end";
  return "no program that you may end has the number " + number;
}

// Returns the cause if the view ended by itself.
std::string live(Terminal terminal, const AskOptions& options) {
  TopView view(options.sort, end_session, "docs/monitoring.md explains the columns.\n", colours_are_wanted());
  std::vector<std::string> lines{"waiting for an answer from " + harmless(std::getenv("GPUWIRE_SERVER")) + " ..."};
  Timer timer;
  std::optional<Question> question;
  bool changed = false;  // since the question was asked
  auto ask = [&] {
    changed = false;
    question.emplace(query("top", options, view.sort(), terminal.columns()));
  };
  auto ask_soon = [&] {
    changed = true;
    timer.set(kChangeS);
  };
  ask();
  for (;;) {
    view.draw(terminal, lines);
    switch (terminal.wait(question ? question->descriptor() : timer.descriptor())) {
      case Terminal::Event::key: {
        const std::string_view sort = view.sort();
        if (!view.press(terminal.key())) return {};
        if (view.sort() != sort) ask_soon();
        break;
      }
      case Terminal::Event::resized: ask_soon(); break;
      case Terminal::Event::stop:
      case Terminal::Event::hung_up: return {};
      case Terminal::Event::readable:
        if (!question) {
          ask();
        } else if (question->read()) {
          if (!question->well()) return question->text();
          lines = lines_of(harmless(question->text()));
          question.reset();
          timer.set(changed ? kChangeS : options.interval_s);
        }
    }
  }
}

int top(const AskOptions& options) {
  if (!options.json && !options.once) {
    if (auto terminal = Terminal::open()) {
      const std::string ended = live(std::move(*terminal), options);
      return ended.empty() ? 0 : fail("top", ended);
    }
  }
  return again_and_again(options);
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
  CommandLine app{shown->description, "gpuwire " + std::string(view)};
  const bool keys = view == "top";
  app.footer({kSessionEnvironment, kConfigurationFiles, kFooter, keys ? "\n\n" : "", keys ? kTopKeysHelp : ""});
  add_session_options(app, session, false);
  app.add_flag("--json", options.json, "Print JSON instead of tables");
  if (view == "usage") {
    app.add_flag("--csv", options.csv, "Print comma-separated values instead of a table");
    app.add_option("--by", options.by, "What a line is of: the tenant, or one of its users (yourself, if you are one)")
        .type_name("tenant|user")
        .one_of({"tenant", "user"})
        .capture_default_str();
    app.add_option("--since", options.since, "Only from this day (UTC) on")
        .type_name("YYYY-MM-DD")
        .check([](const std::string& text) { return units::is_day(text) ? "" : "must be a day, YYYY-MM-DD"; });
  }
  if (view == "top") {
    app.add_option("-i,--interval", options.interval_s, "Seconds between updates")
        .type_name("S")
        .between(kIntervalMinS, kIntervalMaxS)
        .capture_default_str();
    app.add_option("--sort", options.sort, "How to sort the sessions")
        .type_name("KEY")
        .one_of({std::begin(kTopSorts), std::end(kTopSorts)})
        .capture_default_str();
    app.add_flag("--once", options.once, "Show one interval, then exit");
  }
  if (auto code = parse_command_line(app, argc, argv)) return *code;
  if (auto set = set_environment(session); !set) {
    std::fprintf(stderr, "gpuwire %s: %s\n", std::string(view).c_str(), set.error().c_str());
    return kUsageError;
  }
  const std::vector<std::string> servers = named_servers();
  if (view == "top") {
    if (servers.size() > 1) {
      std::fprintf(stderr, "gpuwire top: shows %s, the first of %zu servers\n", servers.front().c_str(),
                   servers.size());
      setenv("GPUWIRE_SERVER", servers.front().c_str(), 1);
    }
    return top(options);
  }
  if (servers.size() > 1) return ask_all(view, options, servers);
  std::string answer;
  if (!ask(servers.front(), view, options, answer)) return 1;
  std::fputs(harmless(answer).c_str(), stdout);
  return 0;
}

}  // namespace gpuwire::launcher
