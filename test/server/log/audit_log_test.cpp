#include "server/log/audit_log.hpp"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/gpuwire-audit-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

std::vector<LogFields> lines_of(const fs::path& file) {
  std::vector<LogFields> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(LogFields::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("The audit log appends one JSON line for each event to a file that is private") {
  Folder folder;
  fs::path file = folder.path / "audit.log";
  {
    auto log = AuditLog::open(file);
    REQUIRE(log);
    log->write("begun", {{"tenant", "a"}, {"program", "x\ny"}});
  }
  auto again = AuditLog::open(file);
  REQUIRE(again);
  again->write("ended", {{"tenant", "a"}, {"gpu_seconds", 1.5}});
  auto lines = lines_of(file);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["event"] == "begun");
  CHECK(lines[0]["program"] == "x\ny");
  CHECK(lines[1]["gpu_seconds"] == 1.5);
  CHECK(lines[1]["time"].get<std::string>().ends_with("Z"));
  struct stat facts {};
  REQUIRE(::stat(file.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
}

TEST_CASE("After the file was moved away, reopening goes on in a new one") {
  Folder folder;
  fs::path file = folder.path / "audit.log", moved = folder.path / "audit.log.1";
  auto log = AuditLog::open(file);
  REQUIRE(log);
  log->write("begun", {});
  fs::rename(file, moved);
  log->write("ended", {});
  REQUIRE(log->reopen());
  log->write("begun", {});
  CHECK(lines_of(moved).size() == 2);
  CHECK(lines_of(file).size() == 1);
}

TEST_CASE("One tenant's lines are bounded, others' are not among them, and how many were left out is said") {
  Folder folder;
  fs::path file = folder.path / "audit.log";
  auto log = AuditLog::open(file);
  REQUIRE(log);
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  log->set_clock([&] { return now; });
  constexpr unsigned kStorm = 3 * kAuditLinesAtOnce;
  unsigned begun = 0, ended = 0;
  for (unsigned i = 0; i < kStorm; ++i) {
    begun += log->write("begun", {{"tenant", "storm"}});
    ended += log->write("ended", {{"tenant", "storm"}});
  }
  CHECK(begun + ended == kAuditLinesAtOnce);
  CHECK(ended - begun == kAuditLinesForEnds);  // these lines account for time
  CHECK_FALSE(log->write("ended", {{"tenant", "storm"}, {"seconds", 0.5}}));
  CHECK(log->write("ended", {{"tenant", "storm"}, {"seconds", 3600.0}}));
  CHECK(log->write("begun", {{"tenant", "other"}}));
  CHECK(log->write("reload_asked", {{"user", "root"}}));
  now += kAuditLineRefill * (kAuditLinesForEnds + 2);
  CHECK(log->write("begun", {{"tenant", "storm"}}));
  auto lines = lines_of(file);
  REQUIRE(lines.size() == kAuditLinesAtOnce + 5);
  CHECK(lines[lines.size() - 2]["event"] == "left_out");
  CHECK(lines[lines.size() - 2]["tenant"] == "storm");
  CHECK(lines[lines.size() - 2]["lines"] == 2 * kStorm - kAuditLinesAtOnce + 1);
  CHECK(lines.back()["event"] == "begun");
}

TEST_CASE("The count of left out lines of a tenant that is quiet since is written beside another's line") {
  Folder folder;
  fs::path file = folder.path / "audit.log";
  auto log = AuditLog::open(file);
  REQUIRE(log);
  std::chrono::steady_clock::time_point now{std::chrono::hours(1)};
  log->set_clock([&] { return now; });
  for (unsigned i = 0; i < kAuditLinesAtOnce + 5; ++i) log->write("ended", {{"tenant", "storm"}});
  now += kAuditLineRefill * kAuditLinesAtOnce;
  CHECK(log->write("begun", {{"tenant", "other"}}));
  auto lines = lines_of(file);
  REQUIRE(lines.size() == kAuditLinesAtOnce + 2);
  CHECK(lines[kAuditLinesAtOnce]["event"] == "left_out");
  CHECK(lines[kAuditLinesAtOnce]["lines"] == 5);
}

TEST_CASE("Names without end have one budget together, and a full one is forgotten") {
  LineBudget budget({.at_once = 2, .refill = std::chrono::milliseconds(1000), .keys_max = 3});
  LineBudget::Time now{std::chrono::hours(1)};
  unsigned written = 0;
  for (int i = 0; i < 100; ++i) written += budget.take("tenant " + std::to_string(i), now).has_value();
  CHECK(budget.keys() == 4);
  CHECK(written == 3 + 2);
  now += std::chrono::seconds(2);
  uint64_t left_out = 0;
  budget.settle(now, [&](const std::string& key, uint64_t lines) {
    CHECK(key == "");
    left_out += lines;
  });
  CHECK(left_out == 95);
  CHECK(budget.take("tenant 1000", now) == uint64_t{0});
  CHECK(budget.keys() == 1);
}

TEST_CASE("A file that others may read, a link and a folder are refused") {
  Folder folder;
  fs::path open_file = folder.path / "open";
  std::ofstream(open_file) << "";
  ::chmod(open_file.c_str(), 0644);
  CHECK_FALSE(AuditLog::open(open_file));
  CHECK(AuditLog::open(open_file).error().find("chmod 600") != std::string::npos);
  fs::path link = folder.path / "link";
  fs::create_symlink(open_file, link);
  CHECK_FALSE(AuditLog::open(link));
  CHECK_FALSE(AuditLog::open(folder.path));
}

TEST_CASE("A line that cannot be written is counted, and the next ones go on") {
  Folder folder;
  auto log = AuditLog::open(folder.path / "audit.log");
  REQUIRE(log);
  log->write("begun", {});
  auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit usual{}, none{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &usual) == 0);
  none = {0, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &none) == 0);
  log->write("lost", {});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &usual) == 0);
  std::signal(SIGXFSZ, before);
  CHECK(log->lines_lost() == 1);
  log->write("ended", {});
  CHECK(lines_of(log->file()).size() == 2);
}

TEST_CASE("A line of which the disk takes a part leaves nothing in the file, and the next one is whole") {
  Folder folder;
  auto log = AuditLog::open(folder.path / "audit.log");
  REQUIRE(log);
  log->write("begun", {});
  auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit usual{}, part{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &usual) == 0);
  part = {fs::file_size(log->file()) + 10, usual.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &part) == 0);
  log->write("lost", {});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &usual) == 0);
  std::signal(SIGXFSZ, before);
  CHECK(log->lines_lost() == 1);
  log->write("ended", {});
  auto lines = lines_of(log->file());
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["event"] == "begun");
  CHECK(lines[1]["event"] == "ended");
}

TEST_CASE("A part of a line that an earlier process has left does not spoil the next one, also after a rotation") {
  Folder folder;
  const fs::path file = folder.path / "audit.log";
  auto torn = [&] {
    std::ofstream(file) << "{\"event\":\"half";
    ::chmod(file.c_str(), 0600);
  };
  auto last_of = [&] {
    std::ifstream in(file);
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return LogFields::parse(last);
  };
  torn();
  auto log = AuditLog::open(file);
  REQUIRE(log);
  log->write("begun", {});
  CHECK(last_of()["event"] == "begun");
  fs::remove(file);
  torn();
  REQUIRE(log->reopen());
  log->write("ended", {});
  CHECK(last_of()["event"] == "ended");
}

TEST_CASE("When the file cannot be opened again, the old one stays in use") {
  Folder folder;
  fs::path file = folder.path / "audit.log", moved = folder.path / "moved";
  auto log = AuditLog::open(file);
  REQUIRE(log);
  fs::rename(file, moved);
  fs::create_directory(file);
  CHECK_FALSE(log->reopen());
  log->write("begun", {});
  CHECK(lines_of(moved).size() == 1);
}
