#include "server/worker/compiled_code.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include "server/module_cache/cache_keeper.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

fs::path place() { return std::getenv("CUDA_CACHE_PATH"); }

// Writes a file like the driver after a compilation. Returns false on failure.
bool keep(const std::string& name) {
  std::error_code error;
  fs::create_directory(place(), error);
  return bool(std::ofstream(place() / name) << "code");
}

}  // namespace

TEST_CASE("a session's compiled code is there for the tenant's next session, and for nobody else's") {
  gpuwire::test::TemporaryDirectory directory;
  fs::path folder = directory.path() / "cache/compiled";
  {
    CompiledCode first(folder);
    first.belongs_to("tenant a");
    CHECK(keep("kernel"));
  }
  CompiledCode again(folder);
  SUBCASE("the same tenant") {
    again.belongs_to("tenant a");
    CHECK(fs::exists(place() / "kernel"));
  }
  SUBCASE("another") {
    again.belongs_to("tenant b");
    CHECK_FALSE(fs::exists(place() / "kernel"));
  }
}

TEST_CASE("the driver is told how much it may keep, whatever the server's environment says") {
  gpuwire::test::TemporaryDirectory directory;
  ::setenv("CUDA_CACHE_MAXSIZE", "4294967296", 1);
  CompiledCode code(directory.path() / "compiled");
  CHECK(std::string(std::getenv("CUDA_CACHE_MAXSIZE")) == std::to_string(kDriverCompiledBytesMax));
}

TEST_CASE("compiled code of a session without a tenant goes with it") {
  gpuwire::test::TemporaryDirectory directory;
  {
    CompiledCode code(directory.path() / "compiled");
    code.belongs_to("");
    CHECK(keep("kernel"));
  }
  CHECK(fs::is_empty(directory.path() / "compiled"));
}

TEST_CASE("the driver finds a folder when it starts, before there is a tenant, and the tenant's afterwards") {
  gpuwire::test::TemporaryDirectory directory;
  CompiledCode code(directory.path() / "compiled");
  CHECK(fs::is_directory(place()));
  CHECK(keep("index"));
  code.belongs_to("tenant a");
  CHECK(fs::is_directory(place()));
  CHECK_FALSE(fs::exists(place() / "index"));
}

TEST_CASE("a folder that another process of this number has left is not taken over") {
  gpuwire::test::TemporaryDirectory directory;
  std::string process = std::to_string(::getpid());
  fs::path others = directory.path() / "another tenant's", own = directory.path() / ("of-worker-" + process);
  fs::create_directory(others);
  fs::create_directory(own);
  std::ofstream(own / "kernel") << "code";
  fs::create_symlink(others, directory.path() / ("worker-" + process));
  CompiledCode code(directory.path());
  CHECK(keep("index"));
  CHECK_FALSE(fs::exists(place() / "kernel"));
  CHECK(fs::is_empty(others));
}

TEST_CASE("without a folder the driver is told to keep nothing") {
  ::unsetenv("CUDA_CACHE_DISABLE");
  CompiledCode code("");
  CHECK(std::string(std::getenv("CUDA_CACHE_DISABLE")) == "1");
  ::unsetenv("CUDA_CACHE_DISABLE");
}
