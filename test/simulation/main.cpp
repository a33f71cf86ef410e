// session_simulation runs scenarios, one seed after the other; it exits with 1 at the first failure and prints the
// seed.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <malloc.h>

#include "command_line/command_line.hpp"
#include "test/simulation/schedule.hpp"
#include "test/simulation/world.hpp"

using namespace gpuwire::simulation;

namespace {

// By a scenario's own clock: only if a fiber has missed a notification do all wait for longer.
constexpr uint64_t kScenarioNsMax = 2'000'000'000;
// An end of a failed fabric waits for the end of the connection beside it, and an end without messages waits for a
// greeting (transport/rdma.cpp, rdma_setup.hpp): each once for each failure of the fabric.
constexpr uint64_t kFabricBreakNsMax = 10'000'000'000;

// A connection that breaks during its setup has carried no bytes of a stream, nor has a TLS connection that breaks in
// its first record (16 KiB). After several of them the client waits longer each time, up to Reconnection::kDelayMax.
constexpr uint64_t kInVainBytesMax = 700, kInVainBytesMaxTls = 4096 + (16u << 10), kInVainNsMax = 2'000'000'000;

const std::map<std::string, Road> kRoads = {
    {"simulated", Road::simulated}, {"shared-memory", Road::shared_memory}, {"tls", Road::tls}, {"rdma", Road::rdma}};

struct Arguments {
  std::string program;
  uint64_t scenarios = 1000, seed = 1, cut_bytes = 0;
  std::string road = "simulated";
  bool verbose = false, explain = false;
};

Arguments g_arguments;
Scenario g_scenario;

void tell_failure(const std::string& what) {
  fmt::print("seed {} failed: {}\n  ({})\n  again: {} --scenarios 1 --seed {} --road {}\n", g_scenario.seed, what,
             describe(g_scenario), g_arguments.program, g_scenario.seed, g_arguments.road);
  std::fflush(stdout);
}

void stuck(const char* why) {
  tell_failure(why);
  ::_exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  gpuwire::CommandLine app{"Runs whole sessions over connections that break, one seeded scenario after the other.",
                           "session_simulation"};
  std::vector<std::string> roads;
  for (const auto& [name, road] : kRoads) roads.push_back(name);
  app.add_option("--scenarios", g_arguments.scenarios, "How many").capture_default_str();
  app.add_option("--seed", g_arguments.seed, "The first one's seed").capture_default_str();
  app.add_option("--cut-bytes", g_arguments.cut_bytes,
                 "Fails unless connections have been cut at each of so many first bytes");
  app.add_option("--road", g_arguments.road, "What connections are").one_of(roads).capture_default_str();
  app.add_flag("--verbose", g_arguments.verbose, "Prints each scenario before it runs");
  app.add_flag("--explain", g_arguments.explain, "Prints where threads are when all of them wait for a second or more");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  g_arguments.program = argv[0];
  // A scenario reuses the memory of the one before, instead of the system's.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 64 << 20);

  fmt::print("{} scenarios from seed {} on\n", g_arguments.scenarios, g_arguments.seed);
  std::fflush(stdout);
  const Road road = kRoads.at(g_arguments.road);
  // One-time initialisation would make the first scenario differ from a later run of it.
  begin_schedule(0, stuck, false);
  run(scenario_of(0, road));

  uint64_t connections = 0, again = 0, longest_ns = 0, longest = 0;
  std::vector<bool> cut_at(20'000);  // by the number of bytes of a connection
  for (uint64_t seed = g_arguments.seed; seed < g_arguments.seed + g_arguments.scenarios; ++seed) {
    g_scenario = scenario_of(seed, road);
    if (g_arguments.verbose) fmt::print("seed {}: {}\n", seed, describe(g_scenario)), std::fflush(stdout);
    begin_schedule(seed, stuck, g_arguments.explain);
    Outcome outcome = run(g_scenario);
    uint64_t ns_max = kScenarioNsMax + g_scenario.fabric_breaks * kFabricBreakNsMax;
    for (uint64_t at : outcome.cut_at)
      ns_max += at < (road == Road::tls ? kInVainBytesMaxTls : kInVainBytesMax) ? kInVainNsMax : 0;
    if (scheduled_wait_ns() > ns_max && outcome.failure.empty())
      outcome.failure = fmt::format("all threads waited for {} ms by its own clock", scheduled_wait_ns() / 1'000'000);
    if (!outcome.failure.empty()) {
      tell_failure(outcome.failure);
      return 1;
    }
    connections += outcome.cuts;
    again += outcome.bytes_sent_again;
    for (uint64_t at : outcome.cut_at)
      if (at < cut_at.size()) cut_at[at] = true;
    if (g_arguments.verbose) fmt::print("  {} ns, {} connections\n", scheduled_ns(), outcome.cuts);
    if (scheduled_wait_ns() <= longest_ns) continue;
    longest_ns = scheduled_wait_ns();
    longest = seed;
  }
  auto first_whole = uint64_t(std::find(cut_at.begin(), cut_at.end(), false) - cut_at.begin());
  fmt::print("cut at each of the first {} bytes of a connection, and at {} of the first {}\n", first_whole,
             std::count(cut_at.begin(), cut_at.end(), true), cut_at.size());
  fmt::print("{} connections, {} bytes sent again, all as without a cut\n", connections, again);
  if (longest)
    fmt::print("by its own clock, all threads waited for at most {} ms (seed {})\n", longest_ns / 1'000'000, longest);
  if (first_whole < g_arguments.cut_bytes) {
    fmt::print("failed: no connection was cut behind its first {} bytes\n", first_whole);
    return 1;
  }
  return 0;
}
