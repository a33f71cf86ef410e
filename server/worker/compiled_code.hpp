// The place for the driver's code that is compiled from PTX, so that the driver compiles a program's code once and not
// in each session.
//
// The driver reads the place (CUDA_CACHE_PATH, CUDA C++ Programming Guide, environment variables) when it is
// initialised, and uses it when it compiles. A worker does not know its session's tenant then. So it names a symbolic
// link of its own: at first to an empty folder, because the driver opens the folder when it starts, and later to the
// tenant's folder. Each tenant has a folder, because the speed of a load would reveal other tenants' code.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace gpuwire::server {

// One in a process, used by its main thread.
class CompiledCode {
 public:
  // Precondition: the driver is not open. `folder`: in the module cache; empty: nothing is cached.
  explicit CompiledCode(std::filesystem::path folder);
  ~CompiledCode() { forget(); }
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;

  // Switches to the tenant's folder, and returns the folder in which the driver writes from now on; empty if there is
  // none. Called once, before the first code is compiled. With an empty `tenant` nothing is cached. A failure costs
  // time, not correctness.
  std::filesystem::path belongs_to(std::string_view tenant);
  // Removes the worker's own link and folder, as far as they are accessible. Precondition: no more code is compiled.
  void forget();

 private:
  std::filesystem::path folder_;
  std::filesystem::path own_, link_;
};

}  // namespace gpuwire::server
