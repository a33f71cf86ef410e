// gpuwire-top: `gpuwire top`.
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "command_line/command_line.hpp"
#include "command_line/terminal/terminal.hpp"
#include "command_line/terminal/top_view.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/control/view/text_table.hpp"
#include "server/control/client/control_client.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/client/socket_path.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kDescription =
    "Shows what the tenants and sessions of the server on this machine are doing, updated after each\n"
    "interval: on a terminal in place, elsewhere one table after the other.\n";

constexpr const char* kColumns =
    "Columns:\n"
    "  GPU%      GPU time in the interval; 100 is one GPU all the time\n"
    "  SYS%      GPU time that nobody is charged for: switches between tenants\n"
    "  ALL%      as GPU%, since the session began or the server was started\n"
    "  REGIME    free: one tenant, unhindered. co-run: several at once. lease: one at a time\n"
    "  STATE     running* has the lease, running! has a warning (below the tables)\n"
    "  MEMORY    used of the limit, on one GPU: where most is used\n"
    "  FLIGHT    estimated GPU time of work that is submitted and not finished\n"
    "  GATE%     part of the interval in which the session's next work was held at its gate\n"
    "  HELD BY   why it was held, and the session that it waits for\n"
    "  WAITS/s   times that the program waited for an answer from the server\n"
    "  IN/s OUT/s  bytes from and to the client\n"
    "  RTT       the connection's round trip, as the kernel measures it\n"
    "\n";

constexpr const char* kFooter =
    "Root and the user that the server runs as see everything; a user of a tenant (unix_users in the\n"
    "configuration) sees that tenant.\n"
    "\n"
    "Environment:\n"
    "  GPUWIRE_CONTROL   the control socket, when --control is not given\n"
    "\n"
    "Exit status: 0; 1 with a line on stderr when no server answers, or it ends; 2 wrong usage.";

struct TopOptions {
  std::string control;
  double interval_s = 1;
  std::string sort = kTopSorts[0];
  bool json = false, once = false;
};

void declare(CommandLine& app, TopOptions& options) {
  app.footer({kColumns, kTopKeysHelp, kFooter});
  app.add_option("--control", options.control, "The server's control socket; without it the only server that runs here")
      .type_name("PATH");
  app.add_option("-i,--interval", options.interval_s, "Seconds between updates")
      .type_name("S")
      .between(kWatchIntervalMinMs / 1000.0, kWatchIntervalMaxMs / 1000.0)
      .capture_default_str();
  app.add_option("--sort", options.sort, "How to sort the sessions")
      .type_name("KEY")
      .one_of({std::begin(kTopSorts), std::end(kTopSorts)})
      .capture_default_str();
  app.add_flag("--json", options.json,
               "Print one JSON object for each interval, on a line of its own (docs/monitoring.md)");
  app.add_flag("--once", options.once, "Look for one interval, print, and end");
}

int fail(const std::string& reason) {
  std::fprintf(stderr, "gpuwire top: %s\n", reason.c_str());
  return 1;
}

tl::expected<Snapshot, std::string> snapshot_in(const tl::expected<Json, std::string>& answer) {
  if (!answer) return tl::unexpected(answer.error());
  auto found = answer->find("snapshot");
  if (found == answer->end()) return tl::unexpected(std::string("an answer without a snapshot"));
  return snapshot_from_json(*found);
}

// Draws the display on standard output. False: the output was closed.
bool print(const Interval& interval, const TopOptions& options, SortKey sort) {
  if (options.json) {
    std::puts(dump(top_json(interval, sort)).c_str());
  } else {
    for (const std::string& line : top_lines(interval, sort, 0)) std::puts(line.c_str());
    if (!options.once) std::puts("");
  }
  return std::fflush(stdout) == 0;
}

int top_plain(ControlClient& client, Snapshot before, const TopOptions& options, SortKey sort) {
  const int timeout_ms = int(options.interval_s * 1000) + int(kControlAnswerMs);
  for (;;) {
    auto after = snapshot_in(client.next_answer(timeout_ms));
    if (!after) return fail(after.error());
    if (!print(Interval(before, *after), options, sort) || options.once) return 0;
    before = std::move(*after);
  }
}

// Uses a separate connection, because the server sends snapshots on the other one.
std::string end_session(const std::filesystem::path& control, const std::string& number) {
  auto client = ControlClient::connect(control);
  auto answer = client ? client->ask({{"command", "end"}, {"session", std::stoull(number)}})
                       : tl::expected<Json, std::string>(tl::unexpect, client.error());
  return answer ? "session " + number + " was told to end" : answer.error();
}

// Not empty: the reason why the loop ended by itself.
std::string top_live(Terminal terminal, ControlClient& client, const std::filesystem::path& control, Snapshot first,
                     std::string_view sort) {
  Snapshot before = first, after = std::move(first);
  TopView view(
      sort, [&](const std::string& number) { return end_session(control, number); }, kColumns, colours_are_wanted());
  for (;;) {
    view.draw(terminal, top_lines(Interval(before, after), *sort_key_named(view.sort()), terminal.columns()));
    switch (terminal.wait(client.descriptor())) {
      case Terminal::Event::key:
        if (!view.press(terminal.key())) return {};
        break;
      case Terminal::Event::resized: break;
      case Terminal::Event::stop:
      case Terminal::Event::hung_up: return {};
      case Terminal::Event::readable: {
        auto next = snapshot_in(client.next_answer(int(kControlAnswerMs)));
        if (!next) return next.error();
        before = std::exchange(after, std::move(*next));
      }
    }
  }
}

int top(const TopOptions& options) {
  auto path = find_control_socket(options.control);
  if (!path) return fail(path.error());
  auto client = ControlClient::connect(*path);
  if (!client) return fail(client.error());
  auto first = snapshot_in(
      client->ask({{"command", "watch"}, {"interval_ms", uint64_t(std::lround(options.interval_s * 1000))}}));
  if (!first) return fail(first.error());
  if (!options.json && !options.once) {
    if (auto terminal = Terminal::open()) {
      std::string ended = top_live(std::move(*terminal), *client, *path, std::move(*first), options.sort);
      return ended.empty() ? 0 : fail(ended);
    }
  }
  return top_plain(*client, std::move(*first), options, *sort_key_named(options.sort));
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  gpuwire::server::TopOptions options;
  gpuwire::CommandLine app(gpuwire::server::kDescription, "gpuwire top");
  gpuwire::server::declare(app, options);
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  return gpuwire::server::top(options);
}
