#include "server/config/configuration.hpp"

#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;
using gpuwire::scheduler::ServiceClass;
using gpuwire::scheduler::Suspend;

namespace {

constexpr uint64_t kGiB = uint64_t(1) << 30;

tl::expected<Configuration, ConfigurationErrors> read(const std::string& text) {
  gpuwire::test::TemporaryDirectory folder;
  auto file = std::filesystem::path(folder.path()) / "server.toml";
  std::ofstream(file) << text;
  auto read = read_configuration(file);
  if (read) return read;
  ConfigurationErrors errors;
  for (std::string line : read.error()) {
    CHECK(line.starts_with(file.string() + ":"));
    errors.push_back(line.substr(file.string().size() + 1));
  }
  return tl::unexpected(errors);
}

// The mistakes, each as LINE: WHAT.
ConfigurationErrors mistakes(const std::string& text) {
  auto outcome = read(text);
  return outcome ? ConfigurationErrors{} : outcome.error();
}

bool names(const ConfigurationErrors& errors, const std::string& line, const std::string& what) {
  for (const std::string& error : errors) {
    if (error.starts_with(line + ":") && error.find(what) != std::string::npos) return true;
  }
  std::string all;
  for (const std::string& error : errors) all += error + "\n";
  MESSAGE("no \"" << what << "\" at line " << line << " in:\n" << all);
  return false;
}

}  // namespace

TEST_CASE("the example of the documentation is right, and says what the documentation says") {
  std::ifstream page(GPUWIRE_CONFIGURATION_PAGE);
  REQUIRE(page);
  std::string text, line;
  for (bool inside = false; std::getline(page, line);) {
    if (line == "```toml") {
      inside = true;
    } else if (line == "```") {
      if (inside) break;
    } else if (inside) {
      text += line + "\n";
    }
  }
  auto read_back = read(text);
  if (!read_back) {
    for (const std::string& error : read_back.error()) MESSAGE(error);
  }
  REQUIRE(read_back);
  CHECK(read_back->listen == std::vector<std::string>{"0.0.0.0:9750", "unix:/run/gpuwire/socket"});
  CHECK(read_back->tls.directory == "/etc/gpuwire/identity");
  REQUIRE(read_back->tenants.size() == 3);
  const TenantConfiguration& anna = read_back->tenants[0];
  CHECK(anna.name == "anna");
  CHECK(anna.service_class == ServiceClass::interactive);
  CHECK(anna.weight == 2);
  CHECK(anna.memory == TenantMemory{20 * kGiB, 60 * kGiB});
  CHECK(memory_on(anna, 1) == TenantMemory{0, 60 * kGiB});
  CHECK(anna.kernel_time_max_ms == 30'000);
  CHECK(anna.idle_time_max_ms == 2 * 3600 * 1000);  // from [defaults]
  CHECK(anna.unix_users == std::vector<std::string>{"anna"});
  CHECK_FALSE(anna.dedup_memory_bytes.has_value());
  CHECK(anna.dedup_disk_bytes == 0);
  const TenantConfiguration& students = read_back->tenants[1];
  REQUIRE(students.name == "students");
  CHECK(students.dedup_memory_bytes == 8 * kGiB);
  CHECK(students.dedup_disk_bytes == 200 * kGiB);
}

TEST_CASE("a chunk store of nothing is not the same as one that nobody has spoken of") {
  auto configuration = read("[tenants.anna]\ndedup_memory = 0\n[tenants.ben]\n");
  REQUIRE(configuration);
  CHECK(configuration->tenants[0].dedup_memory_bytes == 0);
  CHECK_FALSE(configuration->tenants[1].dedup_memory_bytes.has_value());
}

TEST_CASE("the memory of suspended sessions has no bound unless the file has one") {
  auto configuration = read("[server]\nsuspend_memory = \"256GiB\"\n[tenants.anna]\n");
  REQUIRE(configuration);
  CHECK(configuration->suspend_memory_bytes == 256 * kGiB);
  CHECK(open_configuration().suspend_memory_bytes == 0);
  CHECK(names(mistakes("[server]\nsuspend_memory = 256\n[tenants.anna]\n"), "2", "suspend_memory of [server]"));
}

TEST_CASE("the memory of a tenant's suspended sessions has a bound of its own if the file says so") {
  auto configuration =
      read("[defaults]\nsuspend_memory = \"64GiB\"\n[tenants.anna]\n[tenants.ben]\nsuspend_memory = 0\n");
  REQUIRE(configuration);
  CHECK(configuration->tenants[0].suspend_memory_bytes == 64 * kGiB);
  CHECK(configuration->tenants[1].suspend_memory_bytes == 0);
  CHECK(configuration->suspend_memory_bytes == 0);
  CHECK(names(mistakes("[tenants.anna]\nsuspend_memory = \"much\"\n"), "2", "suspend_memory of [tenants.anna]"));
}

TEST_CASE("the server suspends no session of a tenant unless the file says so") {
  auto configuration = read(
      "[defaults]\nsuspend = \"pressure\"\n[tenants.anna]\nsuspend = \"idle\"\nsuspend_after = \"2min\"\n"
      "[tenants.ben]\n[tenants.carl]\nsuspend = \"never\"\n");
  REQUIRE(configuration);
  CHECK(configuration->tenants[0].suspend == Suspend::idle);
  CHECK(configuration->tenants[0].suspend_after_ms == 120'000);
  CHECK(configuration->tenants[1].suspend == Suspend::pressure);
  CHECK(configuration->tenants[1].suspend_after_ms == 600'000);
  CHECK(configuration->tenants[2].suspend == Suspend::never);
  CHECK_FALSE(configuration->tenants[2].suspend_eviction);
  CHECK(read("[tenants.anna]\nsuspend_eviction = true\n")->tenants[0].suspend_eviction);
  CHECK(open_configuration().tenants[0].suspend == Suspend::never);
  CHECK(names(mistakes("[tenants.anna]\nsuspend = \"always\"\nsuspend_after = 10\n"), "2",
              "suspend of [tenants.anna] must be one of \"never\", \"pressure\", \"idle\""));
}

TEST_CASE("everything that is wrong is told at once, in the order of the file, each with its line") {
  ConfigurationErrors errors = mistakes(R"([server]
listen = ["127.0.0.1:70000", "unix:relative", "0.0.0.0:9750"]
sesions_max = 3
log_format = "xml"
sessions_per_gpu_max = "many"
open_tenant = "nobody"

[defaults]
class = "urgent"

[tenants.anna]
weight = 0
memory = { guaranteed = "20GiB", limit = "10GiB" }
kernel_time_max = 30
gpus_allowed = [0, 0, 99]
gpu.x = { limit = '1B' }

[tenants."b e n"]
[tenants.carl]
gpus = 3
gpus_allowed = [1]
unix_users = ["carl", 7]
host_memory = "16 gigs"

[tennants.dora]
)");
  CHECK(names(errors, "2", "must end in a port from 0 to 65535, got \"127.0.0.1:70000\""));
  CHECK(names(errors, "2", "must name an absolute path after unix:, got"));
  CHECK(names(errors, "2", "0.0.0.0:9750 can be reached from the network"));
  CHECK(names(errors, "3", "did you mean \"sessions_max\"?"));
  CHECK(names(errors, "4", "must be one of \"text\", \"json\", got"));
  CHECK(names(errors, "5", "sessions_per_gpu_max of [server] must be a whole number"));
  CHECK(names(errors, "6", "there is no [tenants.nobody]"));
  CHECK(names(errors, "9", "class of [defaults] must be one of \"realtime\""));
  CHECK(names(errors, "12", "weight of [tenants.anna] must be a number above 0"));
  CHECK(names(errors, "13", "limit of [tenants.anna], memory must be at least what is guaranteed"));
  CHECK(names(errors, "14", "must be a duration with a unit"));
  CHECK(names(errors, "15", "names 0 twice"));
  CHECK(names(errors, "15", "whole numbers from 0 to 63"));
  CHECK(names(errors, "16", "a GPU must be a number from 0 to 63, got x"));
  CHECK(names(errors, "18", "\"b e n\" is not a tenant name"));
  CHECK(names(errors, "20", "gpus of [tenants.carl] is 3, but gpus_allowed names 1"));
  CHECK(names(errors, "22", "unix_users of [tenants.carl] must hold strings in quotes, got"));
  CHECK(
      names(errors, "23", " host_memory of [tenants.carl]: \"16 gigs\" is not a size: the unit must be one of B, KB"));
  CHECK(names(errors, "25", "did you mean \"tenants\"?"));
  std::vector<int> lines;
  for (const std::string& error : errors) lines.push_back(std::stoi(error));
  CHECK(std::is_sorted(lines.begin(), lines.end()));
  CHECK(errors.size() == 19);
}

TEST_CASE("a tenant twice, a key twice and what is no TOML are told with their line") {
  CHECK(names(mistakes("[tenants.anna]\n[tenants.ben]\n[tenants.anna]\n"), "3", ""));
  CHECK(names(mistakes("[tenants.anna]\nweight = 1\nweight = 2\n"), "3", ""));
  CHECK(names(mistakes("[tenants.anna]\nweight = = 1\n"), "2", ""));
  CHECK(names(mistakes("[/]\nweight = 1\n"), "1", ""));
  CHECK(names(mistakes("[tenants.anna]\n=weight\n"), "2", ""));
  CHECK(names(mistakes("[server]\n"), "1", "there is no tenant"));
}

TEST_CASE("a mistake is one line, whatever the text that it quotes has in it") {
  for (const std::string& mistake :
       mistakes("[server]\nlisten = [\"\\nix:/run/x\", \"\\u0007:x\"]\n\"a\\nb\" = 1\n[tenants.anna]\n")) {
    CHECK(std::none_of(mistake.begin(), mistake.end(), [](unsigned char c) { return c < ' '; }));
  }
}

TEST_CASE("a file that is no UTF-8 is told with the line, and nothing of it is read") {
  for (const std::string wrong : {"\xe4", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80"})
    CHECK(mistakes("[tenants.anna]\nweight = \"" + wrong + "\"\nfoo = 1\n") == ConfigurationErrors{"2: is no UTF-8"});
  CHECK(mistakes("# \xc3\xa4\n[tenants.anna]\n").empty());
}

TEST_CASE("a file that cannot be read is told with the reason") {
  const auto absent = read_configuration("/there/is/no/such/file.toml");
  REQUIRE_FALSE(absent);
  CHECK(absent.error() == ConfigurationErrors{"/there/is/no/such/file.toml: No such file or directory"});
  const auto folder = read_configuration("/");
  REQUIRE_FALSE(folder);
  CHECK(folder.error() == ConfigurationErrors{"/: Is a directory"});
}

TEST_CASE("two tenants with one Unix user, and a GPU that the server does not offer, are mistakes") {
  ConfigurationErrors errors = mistakes(
      "[server]\ngpus = [0]\n[tenants.anna]\nunix_users = ['x']\n[tenants.ben]\nunix_users = 'x'\ngpus_allowed = "
      "[1]\n");
  CHECK(names(errors, "5", "both have the Unix user \"x\""));
  CHECK(names(errors, "5", "may use GPU 1"));
}

TEST_CASE("the floor of batch is a part of the time, up to a half, and may be none") {
  CHECK(read("[tenants.anna]\n")->batch_floor == 0.05);
  CHECK(read("[server]\nbatch_floor = 0\n[tenants.anna]\n")->batch_floor == 0);
  CHECK(read("[server]\nbatch_floor = 0.5\n[tenants.anna]\n")->batch_floor == 0.5);
  CHECK(names(mistakes("[server]\nbatch_floor = 0.6\n[tenants.anna]\n"), "2", "batch_floor of [server]"));
  CHECK(names(mistakes("[server]\nbatch_floor = -0.1\n[tenants.anna]\n"), "2", "batch_floor of [server]"));
}

TEST_CASE("defaults reach every tenant, and a tenant's own words come first") {
  auto configuration = read(
      "[defaults]\nclass = 'scavenger'\nshare_min = 0\nmemory.limit = '8GiB'\ngpus = "
      "'all'\n[tenants.anna]\n[tenants.ben]\nclass = 'realtime'\n"
      "memory.guaranteed = '1KiB'\ngpu.1.limit = '4GiB'\ngpus = 2\n");
  REQUIRE(configuration);
  REQUIRE(configuration->tenants.size() == 2);
  CHECK(configuration->tenants[0].service_class == ServiceClass::scavenger);
  CHECK(configuration->tenants[0].memory.limit_bytes == 8 * kGiB);
  CHECK(configuration->tenants[0].gpus_wanted == 0);
  CHECK(configuration->tenants[1].service_class == ServiceClass::realtime);
  CHECK(memory_on(configuration->tenants[1], 0) == TenantMemory{1024, 8 * kGiB});
  CHECK(memory_on(configuration->tenants[1], 1) == TenantMemory{1024, 4 * kGiB});
  CHECK(configuration->tenants[1].gpus_wanted == 2);
  CHECK(configuration->listen == std::vector<std::string>{"127.0.0.1:9750"});
}

TEST_CASE("budgets are GPU time in a month, and a user's own words stand before those of each user") {
  auto configuration = read(
      "[defaults]\nbudget = '500h/month'\n[tenants.course]\nbudget = '200h/month'\nbudget_hard = true\n"
      "[tenants.course.each_user]\nsessions_max = 1\nbudget = '10h/month'\n"
      "[tenants.course.users.anna]\nbudget = '90min/month'\nbudget_hard = true\n"
      "[tenants.course.users.ben]\nbudget = 'none'\nsessions_max = 3\n[tenants.lab]\nbudget = "
      "'none'\n[tenants.rest]\n");
  REQUIRE(configuration);
  REQUIRE(configuration->tenants.size() == 3);
  const TenantConfiguration& course = configuration->tenants[0];
  constexpr uint64_t kHourMs = 3'600'000;
  CHECK(course.budget == MonthlyBudget{.ms = 200 * kHourMs, .hard = true});
  CHECK(bounds_of_user(course, "carol") == UserConfiguration{.sessions_max = 1, .budget = {.ms = 10 * kHourMs}});
  CHECK(bounds_of_user(course, "anna") ==
        UserConfiguration{.sessions_max = 1, .budget = {.ms = 90 * 60'000, .hard = true}});
  CHECK(bounds_of_user(course, "ben") == UserConfiguration{.sessions_max = 3, .budget = {}});
  CHECK(bounds_of_user(course, "") == UserConfiguration{});
  CHECK(has_budget(course));
  CHECK_FALSE(has_budget(configuration->tenants[1]));
  CHECK(configuration->tenants[2].budget.ms == 500 * kHourMs);
}

TEST_CASE("a user's bound of memory is that of each user, or the user's own, or none but the tenant's") {
  auto configuration = read(
      "[tenants.course]\nmemory.limit = '80GiB'\n[tenants.course.each_user]\nmemory.limit = '10GiB'\n"
      "[tenants.course.users.anna]\nmemory.limit = '20GiB'\n[tenants.course.users.ben]\nmemory.limit = 0\n"
      "[tenants.course.users.carl]\nsessions_max = 1\n[tenants.free]\n");
  REQUIRE(configuration.has_value());
  const TenantConfiguration& course = configuration->tenants[0];
  auto limit = [&](const char* user) { return bounds_of_user(course, user).memory_limit_bytes >> 30; };
  CHECK(limit("dora") == 10);
  CHECK(limit("anna") == 20);
  CHECK(limit("ben") == 0);
  CHECK(limit("carl") == 10);
  CHECK(limit("") == 0);
  CHECK(bounds_memory_of_users(course));
  CHECK_FALSE(bounds_memory_of_users(configuration->tenants[1]));
  auto wrong = read("[tenants.course.each_user]\nmemory.guaranteed = '1GiB'\nmemory.limit = 5\n");
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().size() == 2);
}

TEST_CASE("a budget or a user that cannot be is a mistake with its line") {
  for (const char* budget : {"'200h'", "'/month'", "'0h/month'", "'soon/month'", "200", "'200/month'", "'200h/year'"})
    CHECK(names(mistakes("[tenants.course]\nbudget = " + std::string(budget) + "\n"), "2", "such as \"200h/month\""));
  CHECK(names(mistakes("[tenants.course]\n[tenants.course.users.'../anna']\n"), "2", "is not a user name"));
  CHECK(names(mistakes("[tenants.course]\n[tenants.course.users.anna]\nclass = 'batch'\n"), "3", "users.anna"));
  CHECK(names(mistakes("[tenants.course]\n[tenants.course.users]\nanna = 1\n"), "3", "must be a table"));
}

TEST_CASE("an address of the network wants TLS or the word that it may be read") {
  CHECK(mistakes("[server]\nlisten = '192.168.0.7:9750'\n[tls]\ndirectory = '/etc/gpuwire/identity'\n[tenants.anna]\n")
            .empty());
  CHECK(mistakes("[server]\nlisten = '[::]:9750'\nallow_unencrypted_network = true\n[tenants.anna]\n").empty());
  CHECK(names(mistakes("[server]\nlisten = '[::]:9750'\n[tenants.anna]\n"), "2", "can be reached from the network"));
  CHECK(mistakes("[server]\nlisten = ['[::1]:9750', '127.0.0.2:0', 'localhost:9750', 'unix:/run/x']\n[tenants.anna]\n")
            .empty());
}

TEST_CASE("RDMA is offered only by the word that says what it takes") {
  CHECK_FALSE(read("[tenants.anna]\n")->rdma);
  CHECK_FALSE(read("[server]\nrdma = 'off'\n[tenants.anna]\n")->rdma);
  CHECK(read("[server]\nrdma = 'trusted'\n[tenants.anna]\n")->rdma);
  CHECK(names(mistakes("[server]\nrdma = 'on'\n[tenants.anna]\n"), "2", "trusted"));
  CHECK_FALSE(mistakes("[server]\nrdma = true\n[tenants.anna]\n").empty());
}

TEST_CASE("workers get users of their own by the machine's ranges or by one that the file names") {
  using From = WorkerUsersChoice::From;
  CHECK(read("[tenants.anna]\n")->worker_users.from == From::off);
  CHECK(read("[server]\nworker_users = 'auto'\n[tenants.anna]\n")->worker_users.from == From::subordinate);
  const auto named = read("[server]\nworker_users = '100000-165535'\n[tenants.anna]\n")->worker_users;
  CHECK(named == WorkerUsersChoice{From::range, {100'000, 165'535}});
  for (const char* wrong :
       {"on", "100000", "165535-100000", "0-1000", "100000-4294967295", "100000-165535x", "-", "1-"})
    CHECK(names(mistakes(fmt::format("[server]\nworker_users = '{}'\n[tenants.anna]\n", wrong)), "2", "range"));
}

TEST_CASE("profiles are measured by CUPTI, where there is one, unless the file says otherwise") {
  CHECK(read("[tenants.anna]\n")->cupti == "auto");
  CHECK(read("[server]\ncupti = 'off'\n[tenants.anna]\n")->cupti == "off");
  CHECK(read("[server]\ncupti = '/opt/cupti/libcupti.so'\n[tenants.anna]\n")->cupti == "/opt/cupti/libcupti.so");
  CHECK(names(mistakes("[server]\ncupti = 'libcupti.so'\n[tenants.anna]\n"), "2", "absolute path"));
}

TEST_CASE("the command line's words take the place of the file's, and their mistakes are its own") {
  gpuwire::test::TemporaryDirectory folder;
  auto file = folder.path() / "server.toml";
  std::ofstream(file) << "[server]\nlisten = '0.0.0.0:9750'\nsessions_max = 7\n[tenants.anna]\n";
  CHECK_FALSE(read_configuration(file));
  auto loopback = read_configuration(file, {.listen = {"127.0.0.1:0"}, .sessions_max = 3});
  REQUIRE(loopback);
  CHECK(loopback->listen == std::vector<std::string>{"127.0.0.1:0"});
  CHECK(loopback->sessions_max == 3);
  auto allowed = read_configuration(file, {.allow_unencrypted_network = true});
  REQUIRE(allowed);
  CHECK(allowed->sessions_max == 7);
  for (const auto& refused :
       {read_configuration(file, {.listen = {"10.0.0.1:1"}}), open_configuration({.listen = {"10.0.0.1:1"}})}) {
    REQUIRE_FALSE(refused);
    REQUIRE(refused.error().size() == 1);
    CHECK(refused.error()[0].starts_with("--listen 10.0.0.1:1 can be reached from the network"));
  }
  CHECK(open_configuration({.listen = {"nonsense"}}).error()[0] ==
        "--listen must be HOST:PORT or unix:PATH, got \"nonsense\"");
}

TEST_CASE("guarantees that do not fit the card, and GPUs that are not there, are told") {
  auto configuration = read(
      "[tenants.anna]\nmemory.guaranteed = '10GiB'\n[tenants.ben]\nmemory.guaranteed = '8GiB'\ngpu.1.guaranteed = "
      "0\ngpus_allowed = [0, 2]\n");
  REQUIRE(configuration);
  ConfigurationErrors errors = check_devices(*configuration, {16 * kGiB, 16 * kGiB});
  REQUIRE(errors.size() == 2);
  CHECK(errors[0] == "gpus_allowed of [tenants.ben] names GPU 2, and the server has 2");
  CHECK(errors[1] == "the tenants are guaranteed 18.0 GiB together on GPU 0, which has 16.0 GiB");
  CHECK(check_devices(*configuration, {18 * kGiB, 10 * kGiB, kGiB * 18}).empty());
}

TEST_CASE("a server has a place for every tenant with a guarantee") {
  auto errors = read(
      "[server]\nsessions_max = 1\n[tenants.anna]\nmemory.guaranteed = '1GiB'\n[tenants.ben]\ngpu.1.guaranteed = "
      "'1GiB'\n[tenants.carl]\n");
  REQUIRE_FALSE(errors);
  CHECK(names(errors.error(), "2", "is 1, but 2 tenants are guaranteed memory"));
}

TEST_CASE("a size without a unit is refused, but for 0") {
  auto errors = read("[tenants.anna]\nmemory.limit = 1024\nhost_memory = '1024'\nmemory.guaranteed = 0\n");
  REQUIRE_FALSE(errors);
  CHECK(errors.error().size() == 2);
  CHECK(names(errors.error(), "2", "a unit is missing, one of B, KB,"));
  CHECK(names(errors.error(), "3", "a unit is missing"));
}

TEST_CASE("a quote that is not closed is reported where it is opened, in words") {
  auto errors = mistakes("[server]\nlisten = \"127.0.0.1:9750\n[tenants.anna]\n");
  REQUIRE(errors.size() == 1);
  CHECK(names(errors, "2", "a quote is opened here and not closed"));
}

TEST_CASE("sessions outlive their connection by five minutes unless the server or a tenant says otherwise") {
  auto plain = read("[tenants.anna]\n");
  REQUIRE(plain);
  CHECK(plain->resume_grace_ms == 300'000);
  CHECK(plain->hang_up_grace_ms == 300'000);
  CHECK(read("[server]\nresume_grace = \"1h\"\n[tenants.anna]\n")->hang_up_grace_ms == 3'600'000);
  CHECK_FALSE(plain->tenants[0].resume_grace_max_ms);
  auto said = read(
      "[server]\nresume_grace = \"1h\"\nhang_up_grace = \"0s\"\n[defaults]\nresume_grace_max = "
      "\"10min\"\n[tenants.anna]\n[tenants.ben]\nresume_grace_max = \"0s\"\n");
  REQUIRE(said);
  CHECK(said->resume_grace_ms == 3'600'000);
  CHECK(said->hang_up_grace_ms == 0);
  CHECK(said->tenants[0].resume_grace_max_ms == 600'000);
  CHECK(said->tenants[1].resume_grace_max_ms == 0);
  auto errors = mistakes("[server]\nresume_grace = \"8d\"\n[tenants.anna]\nresume_grace_max = \"30d\"\n");
  CHECK(names(errors, "2", "resume_grace of [server] must be at most 7 days, got"));
  CHECK(names(errors, "4", "resume_grace_max of [tenants.anna] must be at most 7 days, got"));
}
