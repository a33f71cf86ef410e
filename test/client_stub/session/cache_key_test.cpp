#include "client_stub/session/cache_key.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using client::cache_key;
namespace fs = std::filesystem;

TEST_CASE("a key is made once, random, for the user alone, in folders that were missing") {
  test::TemporaryDirectory folder;
  std::string one = folder.path() / "a/b/cache_key", other = folder.path() / "other";
  auto key = cache_key(one);
  REQUIRE(key);
  CHECK(cache_key(one) == key);
  CHECK(cache_key(other) != key);
  struct stat status {};
  REQUIRE(stat(one.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(stat(fs::path(one).parent_path().c_str(), &status) == 0);
  CHECK((status.st_mode & 077) == 0);
}

TEST_CASE("a key that others may read, of another size or behind a link is none, and is left alone") {
  test::TemporaryDirectory folder;
  std::string file = folder.path() / "key", link = folder.path() / "link";
  REQUIRE(cache_key(file));
  fs::create_symlink(file, link);
  CHECK_FALSE(cache_key(link));
  chmod(file.c_str(), 0644);
  CHECK_FALSE(cache_key(file));
  chmod(file.c_str(), 0600);
  CHECK(cache_key(file));
  fs::resize_file(file, 31);
  CHECK_FALSE(cache_key(file));
  CHECK(fs::file_size(file) == 31);
  CHECK_FALSE(cache_key(folder.path()));
  CHECK_FALSE(cache_key(""));
  CHECK_FALSE(cache_key("/proc/no/place/for/it"));
}

TEST_CASE("processes that start at the same time get the same key") {
  test::TemporaryDirectory folder;
  std::string file = folder.path() / "gpuwire/cache_key";
  constexpr int kProcesses = 8;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  for (int i = 0; i < kProcesses; ++i) {
    if (fork() == 0) {
      auto key = cache_key(file);
      _exit(key && write(ends[1], key->data(), key->size()) == ssize_t(key->size()) ? 0 : 1);
    }
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = 0;
    REQUIRE(wait(&status) > 0);
    REQUIRE(status == 0);
    client::CacheKey key;
    REQUIRE(read(ends[0], key.data(), key.size()) == ssize_t(key.size()));
    CHECK(cache_key(file) == key);
  }
  for (const auto& entry : fs::directory_iterator(fs::path(file).parent_path())) CHECK(entry.path() == file);
}
