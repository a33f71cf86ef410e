#include "server/software_device/driver/call/refusal.hpp"

#include <exception>
#include <mutex>
#include <set>
#include <string>

#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/launch/output.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"

namespace gpuwire::software_device {

void log_refusal(std::string_view reason) noexcept {
  reason = reason.substr(0, reason.find_last_not_of('\n') + 1);
  static std::mutex mutex;
  static auto* const told = new std::set<std::string, std::less<>>;
  try {
    const std::lock_guard lock(mutex);
    if (told->size() >= kRefusalsToldMax || !told->emplace(reason).second) {
      return;
    }
    write_output(kStderr, "gpuwire software device: " + std::string(reason) + "\n");
  } catch (const std::exception&) {
    // Ignored: the line only explains the error code.
  }
}

CUresult not_supported(std::string_view what) noexcept {
  try {
    log_refusal(std::string(what) + " is not supported");
  } catch (const std::exception&) {
    // Ignored, as above.
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gpuwire::software_device

// The body of every driver function that is not implemented (generate_exports.py). A function that a capture forbids
// invalidates the capture even so.
extern "C" CUresult software_device_not_offered(const char* function) {
  using namespace gpuwire::software_device;
  const CUresult refused = driver_status() == CUDA_SUCCESS ? permit_function(function) : CUDA_SUCCESS;
  return refused != CUDA_SUCCESS ? refused : not_supported(function);
}
