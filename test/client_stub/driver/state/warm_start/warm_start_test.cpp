#include "client_stub/driver/state/warm_start/warm_start.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"

namespace gpuwire::client {
namespace {

using Section = WarmStartSection;
using Texts = std::vector<std::string>;

struct StoreUser : test::WarmStartUser {
  StoreUser() : WarmStartUser("kernel") {}

  WarmStart subject(size_t number = 0) const {
    SubjectDigest digest{};
    std::memcpy(digest.data(), &number, sizeof number);
    return {folder.string(), digest};
  }
  Texts lines_of(Section section) const { return subject().lines(section); }
};

}  // namespace

TEST_CASE("Each section of a subject has its lines in order, each once, and no other section's") {
  StoreUser user;
  WarmStart store = user.subject();
  for (const char* line : {"first", "second", "first", "third"}) store.add(Section::kernels, line, false);
  store.add(Section::occupancy, "first", true);
  CHECK(store.lines(Section::kernels) == Texts{"first", "second", "third"});
  CHECK(user.lines_of(Section::kernels) == Texts{"first", "second", "third"});
  CHECK(user.lines_of(Section::occupancy) == Texts{"first"});
  CHECK(user.lines_of(Section::parameters).empty());
  WarmStart later = user.subject();
  later.add(Section::kernels, "second", false);
  later.add(Section::kernels, "fourth", false);
  CHECK(user.text() == "first\nsecond\nthird\nfourth\n");
  struct stat status {};
  REQUIRE(::stat(user.file().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("The only line of a section is written by itself only where it is worth a file") {
  StoreUser user;
  WarmStart store = user.subject();
  store.add(Section::kernels, "only", false);
  CHECK(user.files().empty());
  store.add(Section::occupancy, "alone", true);
  CHECK(user.files().size() == 1);
  CHECK(user.text().empty());
  store.add(Section::kernels, "second", false);
  CHECK(user.text() == "only\nsecond\n");
}

TEST_CASE("Lines of processes that run at the same time are all there, and what says nothing costs nobody anything") {
  StoreUser user;
  WarmStart one = user.subject(), other = user.subject();
  for (WarmStart* store : {&one, &other}) store->lines(Section::kernels);
  one.add(Section::kernels, "a", true);
  other.add(Section::kernels, "b", true);
  other.add(Section::kernels, "a", true);
  CHECK(user.text() == "a\nb\na\n");
  std::ofstream(user.file(), std::ios::app) << "\nkernel\nunknown c\n c\nkernel cut sh";
  CHECK(user.lines_of(Section::kernels) == Texts{"a", "b"});
}

TEST_CASE("A section is replaced, the others stay, and a process that appends meanwhile gives way") {
  StoreUser user;
  WarmStart store = user.subject();
  for (const char* line : {"a", "b", "c"}) store.add(Section::kernels, line, true);
  user.subject().add(Section::memory, "of another process", true);
  store.replace(Section::kernels, {"c", "c", "d"});
  CHECK(store.lines(Section::kernels) == Texts{"c", "d"});
  CHECK(user.lines_of(Section::kernels) == Texts{"c", "d"});
  CHECK(user.lines_of(Section::memory) == Texts{"of another process"});
  store.add(Section::kernels, "a", true);
  CHECK(user.text() == "c\nd\na\n");
  const int descriptor = ::open(user.file().c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(::flock(descriptor, LOCK_EX) == 0);
  store.add(Section::kernels, "not waited for", true);
  store.replace(Section::kernels, {});
  ::close(descriptor);
  CHECK(user.text() == "c\nd\na\n");
  WarmStart fresh = user.subject(1);
  fresh.replace(Section::kernels, {"x"});
  CHECK(user.files().size() == 1);  // there was nothing to replace
}

TEST_CASE("A section and a file are bounded in size, and files in number") {
  StoreUser user;
  WarmStart store = user.subject();
  const std::string half(kWarmStartSectionBytesMax / 2, 'n');
  for (const char* end : {"a", "b"}) store.add(Section::kernels, half + end, true);
  store.add(Section::kernels, "short", true);
  store.add(Section::occupancy, "other section", true);
  CHECK(user.lines_of(Section::kernels) == Texts{half + "a", "short"});
  CHECK(user.lines_of(Section::occupancy).size() == 1);
  std::ofstream(user.file(), std::ios::app) << std::string(kWarmStartFileBytesMax, 'x') << '\n';
  CHECK(user.lines_of(Section::kernels).empty());
  user.subject().add(Section::kernels, "one more", true);
  CHECK(std::filesystem::file_size(user.file()) < 2 * kWarmStartFileBytesMax);
  std::ofstream(user.folder / "of somebody else") << "text";
  for (size_t i = user.files().size(); i < kWarmStartFilesMax; ++i) {
    SubjectDigest digest{};
    std::memcpy(digest.data() + sizeof i, &i, sizeof i);
    std::ofstream(user.folder / hex_digits(digest)) << "kernel a\n";
  }
  for (size_t i = 1; i <= 10; ++i) user.subject(i).add(Section::kernels, "a", true);
  CHECK(user.files().size() == kWarmStartFilesMax + 1);
  CHECK(std::filesystem::exists(user.folder / "of somebody else"));
}

TEST_CASE("A file that others may write to, a link or a pipe is neither read nor written") {
  StoreUser user;
  for (const char* line : {"a", "b"}) user.subject().add(Section::kernels, line, true);
  const std::filesystem::path file = user.file();
  REQUIRE(user.lines_of(Section::kernels).size() == 2);
  SUBCASE("others may write") { REQUIRE(::chmod(file.c_str(), 0620) == 0); }
  SUBCASE("a link") {
    std::filesystem::rename(file, user.folder / "elsewhere");
    std::filesystem::create_symlink(user.folder / "elsewhere", file);
  }
  SUBCASE("a pipe") {
    std::filesystem::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  }
  WarmStart again = user.subject();
  CHECK(again.lines(Section::kernels).empty());
  again.add(Section::kernels, "c", true);
  again.replace(Section::kernels, {"c"});
  CHECK(user.lines_of(Section::kernels).empty());
}

TEST_CASE("Nothing is read or written without a folder") {
  WarmStart nowhere("", {});
  nowhere.add(Section::kernels, "a", true);
  nowhere.replace(Section::kernels, {"b"});
  CHECK_FALSE(nowhere.kept());
  CHECK(nowhere.lines(Section::kernels).empty());
}

}  // namespace gpuwire::client
