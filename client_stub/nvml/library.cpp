// Initialisation, errors, and facts about the client's own machine.
#include <cstdio>
#include <cstring>
#include <string_view>

#include "client_stub/nvml/connection.hpp"
#include "client_stub/nvml/local.hpp"
#include "nvml/custom.hpp"

namespace gpuwire::nvml {

namespace {

struct Text {
  int status;
  const char* text;
};

constexpr Text kTexts[] = {
    {kSuccess, "Success"},
    {kUninitialized, "Uninitialized"},
    {kInvalidArgument, "Invalid Argument"},
    {kNotSupported, "Not Supported"},
    {kNoPermission, "Insufficient Permissions"},
    {kAlreadyInitialized, "Already Initialized"},
    {kNotFound, "Not Found"},
    {kInsufficientSize, "Insufficient Size"},
    {kInsufficientPower, "Insufficient External Power"},
    {kDriverNotLoaded, "Driver Not Loaded"},
    {kTimeout, "Timeout"},
    {kIrqIssue, "Interrupt Request Issue"},
    {kLibraryNotFound, "NVML Shared Library Not Found"},
    {kFunctionNotFound, "Function Not Found"},
    {kCorruptedInforom, "Corrupted infoROM"},
    {kGpuIsLost, "GPU is lost"},
    {kResetRequired, "GPU requires reset"},
    {kOperatingSystem, "GPU access blocked by the operating system"},
    {kLibraryVersionMismatch, "Driver/library version mismatch"},
    {kInUse, "In use by another client"},
    {kMemory, "Insufficient Memory"},
    {kNoData, "No data"},
    {kVgpuEccNotSupported, "vGPU ECC not supported"},
    {kInsufficientResources, "Insufficient Resources"},
    {kFrequencyNotSupported, "Invalid Frequency"},
    {kArgumentVersionMismatch, "Argument version mismatch"},
    {kDeprecated, "Requested functionality has been deprecated"},
    {kNotReady, "System is not in ready state"},
    {kGpuNotFound, "No supported GPUs were found"},
    {kInvalidState, "Resource not in correct state to perform requested operation"},
    {kResetTypeNotSupported, "Reset type is not supported for given device"},
};

}  // namespace

int custom::nvmlInit_v2() { return initialise(); }
// The flags concern machines without devices or with broken ones; NVIDIA's library accepts any value.
int custom::nvmlInitWithFlags(unsigned int) { return initialise(); }
int custom::nvmlShutdown() { return shut_down(); }

const char* custom::nvmlErrorString(unsigned int result) {
  for (const Text& entry : kTexts)
    if (entry.status == int(result)) return entry.text;
  return "Unknown Error";
}

int custom::nvmlGetExcludedDeviceCount(unsigned int* count) { return put(0u, count); }
int custom::nvmlUnitGetCount(unsigned int* count) { return put(0u, count); }

// The program's process identifiers are those of its own machine.
int custom::nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  if (int status = initialised()) return status;
  if (!name || length == 0) return kInvalidArgument;
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return kNotFound;
  char text[1024];
  size_t got = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  if (got == 0) return kNotFound;
  text[got] = 0;  // the arguments are separated by zeros: the first is the program
  std::snprintf(name, length, "%s", text);
  return std::strlen(text) < length ? kSuccess : kInsufficientSize;
}

}  // namespace gpuwire::nvml
