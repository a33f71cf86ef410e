// Where the driver keeps what it has compiled from PTX, so that it compiles a program's code once and not in each
// session.
//
// The driver reads the place (CUDA_CACHE_PATH, CUDA C++ Programming Guide, environment variables) when it is
// initialised, and uses it when it compiles. A worker does not know yet whose it will be then: it names a link of its
// own, to an empty folder at first, because the driver looks for one when it starts, and later to the tenant's. Each
// tenant has a folder, because how fast code loads would tell what others have loaded.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace gpuwire::server {

// One in a process, used by its main thread.
class CompiledCode {
 public:
  // Before the driver is opened. `folder`: in the module cache; empty: nothing is kept.
  explicit CompiledCode(std::filesystem::path folder);
  ~CompiledCode() { forget(); }
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;

  // Before the first code is compiled; once. Empty: nobody's, nothing is kept. What cannot be made costs time, not
  // correctness. Gives the folder that the driver writes in from now on; empty: in none.
  std::filesystem::path belongs_to(std::string_view tenant);
  // Removes the link and the folder of its own, as far as they are in reach: nothing is compiled any more.
  void forget();

 private:
  std::filesystem::path folder_;
  std::filesystem::path own_, link_;
};

}  // namespace gpuwire::server
