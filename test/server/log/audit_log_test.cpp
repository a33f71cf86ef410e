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
