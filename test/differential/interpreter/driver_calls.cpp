// The driver's functions, looked up in libcuda.so.1 by name; the list is generated from protocol/api/. The header then
// declares every function under its own name.
#define __CUDA_API_VERSION_INTERNAL
#include <cudaProfiler.h>
#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <unordered_map>

#include "calls.hpp"
#include "cuda_names.hpp"

namespace differential {
namespace {

void* symbol(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) throw std::runtime_error(dlerror());
  void* found = dlsym(library, name);
  if (!found) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  return found;
}

using Call = CUresult (*)(const char* name, const std::vector<Argument>& arguments);

// A forward reference to the name alone: nothing of libcuda is linked.
#define GPUWIRE_CALL(function)                                                      \
  {#function, [](const char* name, const std::vector<Argument>& arguments) {        \
     return invoke(reinterpret_cast<decltype(&function)>(symbol(name)), arguments); \
   }},
const std::unordered_map<std::string_view, Call>& calls() {
  static const std::unordered_map<std::string_view, Call> all = {
#include "differential_calls.inc"
  };
  return all;
}
#undef GPUWIRE_CALL

}  // namespace

bool make_driver_call(std::string_view name, const std::vector<Argument>& arguments, Outcome& outcome) {
  // The per-thread stream forms have the types of the plain ones.
  std::string plain(name);
  for (const char* suffix : {"_ptsz", "_ptds"}) {
    if (plain.ends_with(suffix)) plain.resize(plain.size() - 5);
  }
  auto found = calls().find(plain);
  if (found == calls().end()) return false;
  CUresult result = found->second(std::string(name).c_str(), arguments);
  const char* text = nullptr;
  reinterpret_cast<decltype(&cuGetErrorName)>(symbol("cuGetErrorName"))(result, &text);
  outcome = {result == CUDA_SUCCESS, text ? text : std::to_string(result)};
  return true;
}

}  // namespace differential
