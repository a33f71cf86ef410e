// Workers that start on the test's signal, and their number.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "test/support/temporary_directory.hpp"

namespace gpuwire::test {

// Workers that start one by one, on the test's signal.
struct GatedWorkers {
  TemporaryDirectory temporary;
  std::string path = (temporary.path() / "gate").string();
  server::OwnedDescriptor gate;
  GatedWorkers() {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    gate.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(gate);
  }
  void let_begin(size_t workers) {
    const std::string bytes(workers, 'x');
    REQUIRE(::write(gate.get(), bytes.data(), bytes.size()) == ssize_t(bytes.size()));
  }
  std::vector<std::string> arguments() const { return {"gated", "1", path}; }
};

// Returns the number of this process's children that are fake workers.
inline size_t fake_workers() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::error_code error;
      auto program = std::filesystem::read_symlink(fmt::format("/proc/{}/exe", child), error);
      count += program.filename() == std::filesystem::path(GPUWIRE_TEST_FAKE_WORKER).filename();
    }
  }
  return count;
}

}  // namespace gpuwire::test
