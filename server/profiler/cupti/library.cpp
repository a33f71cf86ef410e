#include "server/profiler/cupti/library.hpp"

#include <dlfcn.h>

#include <iterator>

#include <fmt/format.h>

#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::server::cupti {

namespace {

constexpr size_t kReasonBytesMax = 300;

std::string one_line(const char* text) {
  std::string line = std::string(text ? text : "").substr(0, kReasonBytesMax);
  wire::blank_unshown(line);
  return line;
}

template <class Function>
bool find(void* library, const char* name, Function*& out) {
  out = reinterpret_cast<Function*>(::dlsym(library, name));
  return out != nullptr;
}

// Returns the name of a missing function; null: none is missing.
const char* lacking(void* library, Functions& call) {
  find(library, "cuptiActivitySetAttribute", call.ActivitySetAttribute);
  find(library, "cuptiActivityEnableDriverApi", call.ActivityEnableDriverApi);
  const char* missing = nullptr;
  auto need = [&](const char* name, auto& out) {
    if (!find(library, name, out) && !missing) missing = name;
  };
  need("cuptiGetVersion", call.GetVersion);
  need("cuptiGetResultString", call.GetResultString);
  need("cuptiActivityRegisterTimestampCallback", call.ActivityRegisterTimestampCallback);
  need("cuptiActivityRegisterCallbacks", call.ActivityRegisterCallbacks);
  need("cuptiActivityEnable", call.ActivityEnable);
  need("cuptiActivityDisable", call.ActivityDisable);
  need("cuptiActivityFlushAll", call.ActivityFlushAll);
  need("cuptiActivityGetNextRecord", call.ActivityGetNextRecord);
  need("cuptiActivityGetNumDroppedRecords", call.ActivityGetNumDroppedRecords);
  need("cuptiActivityPushExternalCorrelationId", call.ActivityPushExternalCorrelationId);
  need("cuptiActivityPopExternalCorrelationId", call.ActivityPopExternalCorrelationId);
  return missing;
}

}  // namespace

std::vector<std::string> candidates(int driver_version) {
  constexpr int kCuda13 = 13'000;
  std::vector<std::string> paths;
  for (int major : {13, 12}) {
    if (major == 13 && driver_version < kCuda13) continue;
    for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"})
      paths.push_back(fmt::format("{}libcupti.so.{}", folder, major));
    paths.push_back(fmt::format("/usr/local/cuda-{0}/lib64/libcupti.so.{0}", major));
  }
  return paths;
}

std::string name_of(uint32_t api_version) {
  if (api_version >= kApiNewStyleOldest && api_version < kApiUnknown)
    return fmt::format("CUPTI {}.{}", api_version / 10'000, api_version / 100 % 100);
  if (api_version < kApiOldest || api_version > kApiOldStyleNewest) return "";
  // From cupti_version.h, which does not contain 25.
  constexpr const char* kNames[] = {"11.8", "12.0", "12.2", "12.3", "12.4", "12.5",
                                    "12.6", "12",   "12.8", "12.9", "12.9"};
  static_assert(std::size(kNames) == kApiOldStyleNewest - kApiOldest + 1);
  return fmt::format("CUPTI {}", kNames[api_version - kApiOldest]);
}

tl::expected<Library, std::string> open(const std::vector<std::string>& paths) {
  void* handle = nullptr;
  std::string path, why;
  for (const std::string& each : paths) {
    handle = ::dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    path = each;
    if (handle) break;
    why = one_line(::dlerror());
  }
  if (!handle && paths.size() == 1) return tl::unexpected(why);
  if (!handle) return tl::unexpected(std::string("libcupti.so is not installed on the server"));
  Library library;
  if (const char* name = lacking(handle, library.call)) return tl::unexpected(fmt::format("{} has no {}", path, name));
  uint32_t version = 0;
  if (const Result result = library.call.GetVersion(&version); result != kSuccess)
    return tl::unexpected(fmt::format("{}: cuptiGetVersion: {}", path, describe(library.call, result)));
  library.name = name_of(version);
  if (library.name.empty())
    return tl::unexpected(fmt::format("{} is of an API version that gpuwire does not know, {}", path, version));
  return library;
}

std::string describe(const Functions& call, Result result) {
  const char* text = nullptr;
  if (call.GetResultString(result, &text) != kSuccess || !text) return fmt::format("error {}", result);
  return fmt::format("{} ({})", one_line(text), result);
}

}  // namespace gpuwire::server::cupti
