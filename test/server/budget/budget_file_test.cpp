// The file of budgets is read back after damage by a power failure or another server.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "server/budget/budget_file.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "gpuwire-budgets-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  fs::path file() const { return path / "state" / "budgets"; }
};

const Month kMonth(std::chrono::system_clock::from_time_t(1'800'000'000));

BudgetBook book_of(std::chrono::nanoseconds used) {
  BudgetBook book;
  book.charge("one", "course", "course/anna", used, kMonth);
  return book;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the used time in the book that was read; a word if there is none.
std::string read(const fs::path& path) {
  auto file = BudgetFile::open(path);
  if (!file) return "not opened";
  auto book = file->read();
  if (!book) return "broken";
  return *book ? std::to_string((*book)->used("course", kMonth) / 1s) : "none";
}

}  // namespace

TEST_CASE("a book is read back as it was written, by the next server that has the file") {
  Folder folder;
  CHECK(read(folder.file()) == "none");
  {
    auto file = BudgetFile::open(folder.file());
    REQUIRE(file.has_value());
    REQUIRE(file->write(book_of(5s)).has_value());
    REQUIRE(file->write(book_of(7s)).has_value());
    auto other = BudgetFile::open(folder.file());
    REQUIRE_FALSE(other.has_value());
    CHECK(other.error().find("is another server's: give each its own budget_file") != std::string::npos);
  }
  CHECK(read(folder.file()) == "7");
  CHECK((fs::status(folder.file()).permissions() & fs::perms::others_all) == fs::perms::none);
}

TEST_CASE("wherever a file was cut or changed, the generation before it is read") {
  Folder folder;
  std::string whole;
  {
    auto file = BudgetFile::open(folder.file());
    REQUIRE(file.has_value());
    REQUIRE(file->write(book_of(5s)).has_value());
    REQUIRE(file->write(book_of(7s)).has_value());  // the first becomes the earlier generation
    whole = text_of(folder.file());
  }
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    std::ofstream(folder.file(), std::ios::binary | std::ios::trunc) << whole.substr(0, bytes);
    CAPTURE(bytes);
    CHECK(read(folder.file()) == "5");
    std::string changed = whole;
    changed[bytes] = char(changed[bytes] ^ 1);
    std::ofstream(folder.file(), std::ios::binary | std::ios::trunc) << changed;
    CHECK(read(folder.file()) == "5");
  }
  fs::remove(folder.file());
  CHECK(read(folder.file()) == "5");
  // An unfinished file is ignored.
  std::ofstream(folder.file(), std::ios::binary) << whole;
  std::ofstream(folder.file().string() + ".next", std::ios::binary) << "gpuwire bud";
  CHECK(read(folder.file()) == "7");
}

TEST_CASE("where neither generation can be read, that is said, and the file is moved aside") {
  Folder folder;
  fs::create_directories(folder.file().parent_path());
  std::ofstream(folder.file()) << "hello\n";
  CHECK(read(folder.file()) == "broken");
  CHECK(fs::exists(folder.file().string() + ".broken"));
  CHECK(read(folder.file()) == "none");
}
