// Several processes write one array, which is valid after each write, whenever and however a process ends.
#include "client_stub/driver/process/array_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "test/support/temporary_directory.hpp"

namespace gpuwire::client {
namespace {

struct Folder : test::TemporaryDirectory {
  std::string file() const { return (path() / "array").string(); }
  std::string text() const {
    std::ifstream in(file());
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
};

int ended(pid_t child) {
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("a new file is an empty array, and whole again after each write") {
  Folder folder;
  std::string error;
  ArrayFile array;
  REQUIRE(array.open(folder.file().c_str(), error));
  CHECK(folder.text() == "[\n]\n");
  CHECK(array.append("{\"a\":1},\n"));
  CHECK(folder.text() == "[\n{\"a\":1}\n]\n");
  CHECK(array.append("{\"b\":2},\n{\"c\":3},\n"));
  CHECK(folder.text() == "[\n{\"a\":1},\n{\"b\":2},\n{\"c\":3}\n]\n");
}

TEST_CASE("an array that is open is gone on with, and closed") {
  Folder folder;
  std::string error;
  for (const char* before : {"[\n", "[\n{\"a\":1},\n"}) {
    folder.write(before);
    ArrayFile one;
    REQUIRE(one.open(folder.file().c_str(), error));
    CHECK(one.append("{\"b\":2},\n"));
    CHECK(folder.text() == std::string(before) + "{\"b\":2}\n]\n");
  }
}

TEST_CASE("a process that is killed leaves the array whole, and so do its children and others that write at once") {
  Folder folder;
  std::string error;
  ArrayFile array;
  REQUIRE(array.open(folder.file().c_str(), error));
  constexpr int kChildren = 4, kElements = 300;
  std::set<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      // Half of them use their parent's descriptor.
      ArrayFile own;
      std::string why;
      if (i % 2 == 1 && !own.open(folder.file().c_str(), why)) _exit(1);
      const std::string element = "{\"child\":" + std::to_string(i) + "},\n";
      for (int j = 0; j < kElements; ++j)
        if (!(i % 2 == 1 ? own : array).append(element)) _exit(1);
      kill(getpid(), SIGKILL);
    }
    children.insert(child);
  }
  for (const pid_t child : children) {
    const int status = ended(child);
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  }
  std::istringstream in(folder.text());
  std::string line;
  REQUIRE(std::getline(in, line));
  CHECK(line == "[");
  int elements = 0, of_child[kChildren] = {};
  bool right = true;
  for (; std::getline(in, line) && line != "]"; ++elements) {
    const bool last = elements + 1 == kChildren * kElements;
    right &= line.starts_with("{\"child\":") && line.ends_with(last ? "}" : "},");
    if (right) ++of_child[line[9] - '0'];
  }
  CHECK(right);
  CHECK(line == "]");
  for (const int count : of_child) CHECK(count == kElements);
}

TEST_CASE("A full disk leaves the array as it was") {
  Folder folder;
  std::string error;
  ArrayFile array;
  REQUIRE(array.open(folder.file().c_str(), error));
  REQUIRE(array.append("{\"a\":1},\n"));
  const std::string before = folder.text();
  const pid_t child = fork();
  if (child == 0) {
    // Like a disk with room for a few more bytes.
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{before.size() + 5, before.size() + 5};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const bool refused = !array.append("{\"an element\":\"that has no room there\"},\n");
    _exit(refused && array.append("{},\n") ? 0 : 1);
  }
  CHECK(ended(child) == 0);
  CHECK(folder.text() == "[\n{\"a\":1},\n{}\n]\n");
}

TEST_CASE("A pipe gets elements alone") {
  Folder folder;
  std::string error;
  REQUIRE(mkfifo(folder.file().c_str(), 0600) == 0);
  const int reader = open(folder.file().c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  {
    ArrayFile array;
    REQUIRE(array.open(folder.file().c_str(), error));
    CHECK(array.append("{\"a\":1},\n"));
  }
  char text[64] = {};
  CHECK(read(reader, text, sizeof text) == 9);
  CHECK(std::string(text) == "{\"a\":1},\n");
  close(reader);
}

}  // namespace gpuwire::client
