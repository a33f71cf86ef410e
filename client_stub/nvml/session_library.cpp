// The path of libcuda.so.1, whose session code this library uses: the same folder.
#include <dlfcn.h>

#include <filesystem>

#include "client_stub/session/borrowed_session.hpp"

namespace gpuwire::client {

std::string session_library() {
  Dl_info facts{};
  std::error_code error;
  if (!::dladdr(reinterpret_cast<const void*>(&session_library), &facts) || !facts.dli_fname) return "libcuda.so.1";
  // A system folder may contain a link to this library.
  std::filesystem::path self = std::filesystem::canonical(facts.dli_fname, error);
  return error ? "libcuda.so.1" : (self.parent_path() / "libcuda.so.1").string();
}

}  // namespace gpuwire::client
