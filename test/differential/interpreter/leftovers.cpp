#include "leftovers.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "callbacks.hpp"

namespace differential {
namespace {

// For these results the driver's documentation of CUresult says that the context is unusable and the process must be
// relaunched.
constexpr std::array<std::string_view, 11> kSticky = {
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_UNKNOWN",
};

// Calls that change a context or the device without an object that could be ended.
constexpr std::string_view kChanging[] = {
    "cuCtxSet",         "cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxReset",
    "cudaDeviceReset",  "cudaDeviceSetLimit",         "cuCtxEnablePeerAccess",
    "cuGreenCtxCreate", "cuCtxFromGreenCtx",          "cuCtxAttach",
    "cuCtxDetach",
};

// The kinds of objects, in the order in which they are ended. Names are without versions. A call's argument identifies
// the object; a `size` of -1: the end takes no size.
struct Kind {
  std::array<std::string_view, 6> make;  // argument `made` points to the object, or is the object
  int made;
  bool points;
  int size;
  std::array<std::string_view, 5> end;
  std::string_view call;  // ends the object; empty: it is a descriptor
};
constexpr Kind kKinds[] = {
    {{"cuGraphInstantiate", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cudaGraphInstantiate"},
     0,
     true,
     -1,
     {"cuGraphExecDestroy", "cudaGraphExecDestroy"},
     "cuGraphExecDestroy"},
    {{"cuGraphCreate", "cuGraphClone", "cudaGraphCreate"},
     0,
     true,
     -1,
     {"cuGraphDestroy", "cudaGraphDestroy"},
     "cuGraphDestroy"},
    {{"cuStreamEndCapture", "cudaStreamEndCapture"},
     1,
     true,
     -1,
     {"cuGraphDestroy", "cudaGraphDestroy"},
     "cuGraphDestroy"},
    {{"cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary"},
     0,
     true,
     -1,
     {"cuModuleUnload"},
     "cuModuleUnload"},
    {{"cuLibraryLoadData", "cuLibraryLoadFromFile"}, 0, true, -1, {"cuLibraryUnload"}, "cuLibraryUnload"},
    {{"cuLinkCreate"}, 3, true, -1, {"cuLinkDestroy"}, "cuLinkDestroy"},
    {{"cuTexObjectCreate"}, 0, true, -1, {"cuTexObjectDestroy"}, "cuTexObjectDestroy"},
    {{"cuSurfObjectCreate"}, 0, true, -1, {"cuSurfObjectDestroy"}, "cuSurfObjectDestroy"},
    {{"cuArrayCreate", "cuArray3DCreate"}, 0, true, -1, {"cuArrayDestroy"}, "cuArrayDestroy"},
    {{"cuMipmappedArrayCreate"}, 0, true, -1, {"cuMipmappedArrayDestroy"}, "cuMipmappedArrayDestroy"},
    {{"cuEventCreate", "cudaEventCreate", "cudaEventCreateWithFlags"},
     0,
     true,
     -1,
     {"cuEventDestroy", "cudaEventDestroy"},
     "cuEventDestroy_v2"},
    {{"cuStreamCreate", "cuStreamCreateWithPriority", "cudaStreamCreate", "cudaStreamCreateWithFlags",
      "cuGreenCtxStreamCreate"},
     0,
     true,
     -1,
     {"cuStreamDestroy", "cudaStreamDestroy"},
     "cuStreamDestroy_v2"},
    {{"cuGreenCtxCreate"}, 0, true, -1, {"cuGreenCtxDestroy"}, "cuGreenCtxDestroy"},
    {{"cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged", "cudaMalloc", "cudaMallocManaged", "cudaMallocAsync"},
     0,
     true,
     -1,
     {"cuMemFree", "cuMemFreeAsync", "cudaFree", "cudaFreeAsync"},
     "cuMemFree_v2"},
    {{"cuMemAllocAsync", "cuMemAllocFromPoolAsync"},
     0,
     true,
     -1,
     {"cuMemFree", "cuMemFreeAsync", "cudaFree", "cudaFreeAsync"},
     "cuMemFree_v2"},
    {{"cuMemHostAlloc", "cuMemAllocHost", "cudaMallocHost", "cudaHostAlloc"},
     0,
     true,
     -1,
     {"cuMemFreeHost", "cudaFreeHost"},
     "cuMemFreeHost"},
    {{"cuMemHostRegister", "cudaHostRegister"},
     0,
     false,
     -1,
     {"cuMemHostUnregister", "cudaHostUnregister"},
     "cuMemHostUnregister"},
    {{"cuMemPoolCreate", "cuMemPoolImportFromShareableHandle"}, 0, true, -1, {"cuMemPoolDestroy"}, "cuMemPoolDestroy"},
    {{"cuMemMap"}, 0, false, 1, {"cuMemUnmap"}, "cuMemUnmap"},
    {{"cuMemCreate", "cuMemImportFromShareableHandle"}, 0, true, -1, {"cuMemRelease"}, "cuMemRelease"},
    {{"cuMemAddressReserve"}, 0, true, 1, {"cuMemAddressFree"}, "cuMemAddressFree"},
    {{"cuMemExportToShareableHandle", "cuMemPoolExportToShareableHandle"}, 0, true, -1, {}, {}},
};

// Returns the name without its version: older versions make and end the same objects.
std::string_view plain_name(std::string_view name) {
  size_t version = name.rfind("_v");
  return version != std::string_view::npos && version + 3 == name.size() ? name.substr(0, version) : name;
}

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool call(std::string_view name, std::vector<Argument> arguments) { return make_call(name, arguments).success; }

}  // namespace

void Leftovers::note(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome) {
  sticky_ = sticky_ || has(kSticky, outcome.name);
  if (name == "cuCtxSynchronize") unsettled_ = !outcome.success;
  if (name == "cuStreamSynchronize" && !outcome.success) unsettled_ = true;
  note_captures(name, arguments, outcome);
  if (!outcome.success) return;
  changed_ = changed_ || (name != "cuCtxSetCurrent" &&
                          std::ranges::any_of(kChanging, [&](auto prefix) { return name.starts_with(prefix); }));
  if (arguments.empty()) return;
  if (name.starts_with("cuCtxCreate")) {
    contexts_.push_back(*arguments[0].as<const uint64_t*>());
  } else if (plain_name(name) == "cuCtxDestroy") {
    std::erase(contexts_, arguments[0].word);
    changed_ = true;  // the objects in it are not known
  } else if (name == "cuDevicePrimaryCtxRetain") {
    ++retained_;
  } else if (plain_name(name) == "cuDevicePrimaryCtxRelease") {
    --retained_;
  } else {
    note_things(plain_name(name), arguments);
  }
}

void Leftovers::note_things(std::string_view name, const std::vector<Argument>& arguments) {
  for (size_t row = 0; row < std::size(kKinds); ++row) {
    const Kind& kind = kKinds[row];
    if (has(kind.end, name)) things_.erase({row, arguments[0].word, 0});
    if (!has(kind.make, name)) continue;
    const Argument& made = arguments[size_t(kind.made)];
    uint64_t value = !kind.points ? made.word : made.word ? *made.as<const uint64_t*>() : 0;
    // A capture may end into a graph that was there before.
    bool known = std::ranges::any_of(
        things_, [&](const Thing& thing) { return thing.value == value && kKinds[thing.row].call == kind.call; });
    if (value && !known) things_.insert({row, value, kind.size < 0 ? 0 : arguments[size_t(kind.size)].word});
  }
}

// A capture that is not ended makes calls on other streams fail, too, and only its own thread can end it.
void Leftovers::note_captures(std::string_view name, const std::vector<Argument>& arguments, const Outcome& outcome) {
  if (arguments.empty()) return;
  if (name.starts_with("cuStreamBeginCapture") || name.starts_with("cudaStreamBeginCapture")) {
    if (!outcome.success) return;
    capturing_.insert(arguments[0].word);
    // A graph that is captured into may end with the capture.
    if (name == "cuStreamBeginCaptureToGraph")
      std::erase_if(things_, [&](const Thing& thing) { return thing.value == arguments[1].word; });
  } else if (name == "cuStreamEndCapture" || name == "cudaStreamEndCapture") {
    if (outcome.success || outcome.name.ends_with("CaptureInvalidated") ||
        outcome.name.ends_with("CAPTURE_INVALIDATED") || outcome.name.ends_with("CAPTURE_UNJOINED"))
      capturing_.erase(arguments[0].word);
  }
}

bool Leftovers::clear() {
  for (const Thing& thing : things_) {
    if (kKinds[thing.row].call.empty()) ::close(int(uint32_t(thing.value)));
  }
  bool renew = changed_ || !contexts_.empty() || !capturing_.empty() || !end_things();
  if (renew) {
    end_contexts();
  } else {
    for (; retained_ > 0; --retained_) make_call("cuDevicePrimaryCtxRelease_v2", {{.word = 0}});
  }
  // No work that could write this memory is in flight any more.
  for (auto [memory, bytes] : host_) munmap(memory, bytes);
  reset_callback_counts();
  return renew;
}

// Ends the objects, in the primary context. Returns whether all of them ended.
bool Leftovers::end_things() {
  uint64_t primary = 0;
  if (!call("cuDevicePrimaryCtxRetain", {{.word = reinterpret_cast<uint64_t>(&primary)}, {.word = 0}})) return false;
  ++retained_;
  bool ended = call("cuCtxSetCurrent", {{.word = primary}}) && call("cuCtxSynchronize", {});
  for (const Thing& thing : things_) {
    const Kind& kind = kKinds[thing.row];
    if (kind.call.empty()) continue;
    std::vector<Argument> arguments{{.word = thing.value}};
    if (kind.size >= 0) arguments.push_back({.word = thing.bytes});
    ended = call(kind.call, arguments) && ended;
  }
  return call("cuCtxSynchronize", {}) && ended;
}

void Leftovers::end_contexts() {
  // The primary context is not reset while they hold it.
  for (const Thing& thing : things_) {
    if (kKinds[thing.row].call == "cuGreenCtxDestroy") call("cuGreenCtxDestroy", {{.word = thing.value}});
  }
  for (uint64_t context : contexts_) make_call("cuCtxDestroy_v2", {{.word = context}});
  make_call("cudaDeviceReset", {});
  for (; retained_ > 0; --retained_) make_call("cuDevicePrimaryCtxRelease_v2", {{.word = 0}});
  make_call("cudaGetLastError", {});
}

}  // namespace differential
