// Launches. A launch is posted, so the client checks all its arguments. A launch takes no lock but the session's.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/launch/launch_shape.hpp"
#include "client_stub/driver/state/launch/occupancy.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/stream.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client::hand {
namespace {

struct Launch {
  CUfunction function = nullptr;
  LaunchShape shape;
  CUstream stream = nullptr;
  bool per_thread = false;
  bool cooperative = false;
  std::span<const CUlaunchAttribute> attributes;
  void** kernel_params = nullptr;
  void** extra = nullptr;
};

// Returns whether CUDA_LAUNCH_BLOCKING is set, which is read once. Each launch then waits until the kernel has ended,
// and returns the kernel's error.
bool launches_block() noexcept {
  static const bool block = [] {
    const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
    return value && *value && std::string_view(value) != "0";
  }();
  return block;
}

bool names_event(CUlaunchAttributeID id) {
  return id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
}

CUevent event_of(const CUlaunchAttribute& attribute) {
  return attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ? attribute.value.programmaticEvent.event
                                                                : attribute.value.launchCompletionEvent.event;
}

bool asks_cooperative(std::span<const CUlaunchAttribute> attributes) {
  for (const CUlaunchAttribute& attribute : attributes) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative) return true;
  }
  return false;
}

CUresult check_attributes(std::span<const CUlaunchAttribute> attributes) {
  if (attributes.size() > wire::kLaunchAttributesMax) return CUDA_ERROR_INVALID_VALUE;
  for (const CUlaunchAttribute& attribute : attributes) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) return CUDA_ERROR_NOT_SUPPORTED;
    if (names_event(attribute.id) && !find_event(event_of(attribute))) return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

std::span<const int32_t> device_attributes(const Caller& caller) {
  return process()->devices[size_t(caller.state->device)].facts->attributes;
}

// Checks the function's own bounds. If a fact is unavailable, the server's driver checks the bound.
CUresult check_function(const Caller& caller, FunctionState& function, const LaunchShape& shape) {
  int device = caller.state->device, value = 0;
  if (function_attribute(caller, function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device, value) == CUDA_SUCCESS &&
      value > 0 && shape.block_threads() > uint64_t(value)) {
    // The attribute is the minimum of the launch bounds and the registers' limit, for which the driver returns
    // different errors.
    bool registers_known =
        function_attribute(caller, function, CU_FUNC_ATTRIBUTE_NUM_REGS, device, value) == CUDA_SUCCESS;
    bool fit = !registers_known || registers_fit(uint32_t(value), shape.block_threads(), device_attributes(caller));
    return fit ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  if (shape.shared_bytes > 0 &&
      function_attribute(caller, function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, device, value) ==
          CUDA_SUCCESS &&
      shape.shared_bytes > uint64_t(value)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

ClusterShape cluster_of(std::span<const CUlaunchAttribute> attributes) {
  for (const CUlaunchAttribute& attribute : attributes) {
    const auto& dim = attribute.value.clusterDim;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) return {{dim.x, dim.y, dim.z}};
  }
  return {};
}

// Checks the shape of the clusters. If a fact is unavailable, the server's driver checks it.
CUresult check_clusters(const Caller& caller, FunctionState& function, const Launch& launch) {
  int device = caller.state->device;
  auto known = [&](CUfunction_attribute attribute) {
    int value = 0;
    return function_attribute(caller, function, attribute, device, value) == CUDA_SUCCESS && value > 0 ? uint32_t(value)
                                                                                                       : 0;
  };
  ClusterShape compiled{{known(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH), 0, 0}},
      launched = cluster_of(launch.attributes);
  if (compiled.size[0]) {
    compiled.size[1] = known(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
    compiled.size[2] = known(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  }
  if (!launched.any() && !compiled.any()) return CUDA_SUCCESS;
  return check_cluster(launch.shape, launched, compiled,
                       known(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0);
}

// Checks that the device can hold all blocks of a cooperative launch at once.
CUresult check_cooperative(const Caller& caller, FunctionState& function, const LaunchShape& shape,
                           std::span<const int32_t> attributes) {
  if (attributes.size() <= CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) return CUDA_SUCCESS;
  if (!attributes[CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH]) return CUDA_ERROR_NOT_SUPPORTED;
  int blocks_per_processor = 0;
  if (occupancy_blocks(caller, function, int(shape.block_threads()), shape.shared_bytes, 0, blocks_per_processor))
    return CUDA_SUCCESS;
  uint64_t room = uint64_t(blocks_per_processor) * uint64_t(attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]);
  return shape.blocks() > room ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

CUresult send(const Caller& caller, const Launch& launch, const FunctionState& function,
              const LaunchParameters& parameters, uint64_t stream, uint64_t& sequence) {
  auto pack = [&](std::span<std::byte> out) {
    static_cast<void>(pack_parameters(parameters, function.parameters, out));
  };
  const wire::message::Launch message{.function = function.handle,
                                      .stream = stream,
                                      .grid_x = launch.shape.grid[0],
                                      .grid_y = launch.shape.grid[1],
                                      .grid_z = launch.shape.grid[2],
                                      .block_x = launch.shape.block[0],
                                      .block_y = launch.shape.block[1],
                                      .block_z = launch.shape.block[2],
                                      .shared_bytes = launch.shape.shared_bytes,
                                      .cooperative = launch.cooperative,
                                      .parameters = {function.parameters.bytes, pack},
                                      .attributes = launch.attributes};
  if (launches_block()) [[unlikely]] {
    CUresult error = send::call_launch(*caller.session, caller.context, message);
    sequence = caller.session->last_sequence();
    caller.server->device_output.write();
    return error;
  }
  return send::post_launch(*caller.session, caller.context, message, &sequence);
}

// Notes that the launch's frame records the events in the launch's attributes.
void note_events(const Caller& caller, const Launch& launch, uint64_t stream, uint64_t sequence) noexcept {
  for (const CUlaunchAttribute& attribute : launch.attributes) {
    if (!names_event(attribute.id)) continue;
    const StreamState* state = find_stream(caller.state, stream);
    const uint64_t capture = state ? state->capture.load(std::memory_order_relaxed) : 0;
    if (EventState* event = find_event(event_of(attribute)))
      note_record(caller, *event, stream, capture, sequence, false);
  }
}

// The parameters of a kernel are scanned together up to this size; longer ones are scanned one by one.
constexpr size_t kScannedTogetherBytesMax = 4096;

// Makes pinned memory to which a parameter, or a member of one, points known to the device before the launch is sent.
// Releases cached blocks at such addresses.
void scan_for_addresses(const Caller& caller, const LaunchParameters& parameters,
                        const FunctionState& function) noexcept {
  const PinnedPointers& pinned = caller.server->pinned_pointers;
  if (!pinned.any() && !pinned.any_unsent() && !caller.server->cached_memory.any()) [[likely]]
    return;
  if (!parameters.each) {
    const size_t bytes = std::min<size_t>(parameters.packed_bytes, function.parameters.bytes);
    return note_addresses_in(caller, {parameters.packed, bytes});
  }
  // The parameters are scanned side by side, as the kernel has them, because two of them may be the halves of an
  // address.
  std::array<std::byte, kScannedTogetherBytesMax> packed;
  const bool together = function.parameters.bytes <= packed.size();
  if (together) std::memset(packed.data(), 0, function.parameters.bytes);
  for (size_t i = 0; i < function.parameters.offsets.size(); ++i) {
    const std::span value(static_cast<const std::byte*>(parameters.each[i]), function.parameters.sizes[i]);
    if (!together) note_addresses_in(caller, value);
    else if (value.size() <=
             function.parameters.bytes - std::min<size_t>(function.parameters.offsets[i], function.parameters.bytes))
      std::memcpy(packed.data() + function.parameters.offsets[i], value.data(), value.size());
  }
  if (together) note_addresses_in(caller, std::span(packed).first(function.parameters.bytes));
}

// Returns whether the kernel may wait for a word that the program writes. Before it writes the word, the program may
// change the sources of copies behind the kernel. If the server has all such memory at the same addresses, only a
// kernel that was given an address in it can wait.
bool may_wait_for_host(const Caller& caller, const LaunchParameters& parameters,
                       const FunctionState& function) noexcept {
  const HostRegions& regions = caller.server->host_regions;
  if (!regions.any()) [[likely]]
    return false;
  if (!regions.all_shared()) return true;
  auto reaches = [&](const void* data, size_t bytes) {
    uint64_t word = 0;
    for (size_t at = 0; at + sizeof word <= bytes; at += sizeof word) {
      std::memcpy(&word, static_cast<const std::byte*>(data) + at, sizeof word);
      if (regions.may_hold(word)) return true;
    }
    return false;
  };
  if (!parameters.each)
    return reaches(parameters.packed, std::min<size_t>(parameters.packed_bytes, function.parameters.bytes));
  for (size_t i = 0; i < function.parameters.sizes.size(); ++i) {
    if (reaches(parameters.each[i], function.parameters.sizes[i])) return true;
  }
  return false;
}

bool in_null_stream(const Launch& launch) noexcept {
  return launch.stream == CU_STREAM_LEGACY || (!launch.stream && !launch.per_thread);
}

// Refuses the NULL stream beside a capture for which it would have to wait. As in all calls that name a stream, this
// check precedes all others.
CUresult permit_null_stream(const Caller& caller, const Launch& launch) noexcept {
  CUresult error = CUDA_SUCCESS;
  if (caller.server->captures.any() && in_null_stream(launch)) [[unlikely]]
    resolve_stream(caller, launch.stream, launch.per_thread, error);
  return error;
}

// Returns `reason`, the error of an impossible shape. A capture of the launch's stream is invalidated (as measured on
// driver 580). The NULL stream is never captured.
CUresult refuse_shape(const Caller& caller, const Launch& launch, CUresult reason) noexcept {
  if (in_null_stream(launch) || !caller.server->captures.any()) [[likely]]
    return reason;
  CUresult unusable = CUDA_SUCCESS;
  const uint64_t stream = resolve_stream(caller, launch.stream, launch.per_thread, unusable);
  if (const StreamState* state = find_stream(caller.state, stream)) caller.server->captures.invalidate(*state);
  return reason;
}

CUresult launch_kernel(const Caller& caller, const Launch& launch) {
  if (CUresult error = permit_null_stream(caller, launch)) return error;
  FunctionState* function = find_launchable(launch.function);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!caller.state) return CUDA_ERROR_INVALID_CONTEXT;
  if (function->context && function->context != owner(caller)) return CUDA_ERROR_INVALID_HANDLE;
  if (!launch.attributes.empty() && !launch.attributes.data()) return CUDA_ERROR_INVALID_VALUE;
  std::span<const int32_t> attributes = device_attributes(caller);
  if (CUresult error = check_shape(launch.shape, attributes)) return refuse_shape(caller, launch, error);
  if (CUresult error = check_function(caller, *function, launch.shape)) return error;
  if (CUresult error = check_clusters(caller, *function, launch)) return error;
  if (CUresult error = check_attributes(launch.attributes)) return error;
  if (launch.cooperative || asks_cooperative(launch.attributes)) {
    if (CUresult error = check_cooperative(caller, *function, launch.shape, attributes)) return error;
  }
  if (CUresult error = know_parameters(caller, *function)) return error;
  LaunchParameters parameters;
  if (CUresult error = find_parameters(launch.kernel_params, launch.extra, function->parameters.bytes, parameters))
    return error;
  if (parameters.each && !function->parameters_of_server) {
    for (size_t i = 0; i < function->parameters.offsets.size(); ++i) {
      if (!parameters.each[i]) return CUDA_ERROR_INVALID_VALUE;
    }
  }
  // The parameters may be in managed memory, which before_work() makes inaccessible and which must not be accessed
  // under a lock.
  std::vector<std::byte> packed;
  if (caller.server->managed_memory.any() || function->parameters_of_server) [[unlikely]] {
    packed.resize(function->parameters.bytes);
    if (CUresult error = pack_parameters(parameters, function->parameters, packed, reading_of(caller, *function)))
      return error;
    parameters = {.packed = packed.data(), .packed_bytes = packed.size()};
  }
  scan_for_addresses(caller, parameters, *function);
  CUresult error = CUDA_SUCCESS;
  uint64_t stream = resolve_stream(caller, launch.stream, launch.per_thread, error);
  if (error) return error;
  if ((error = before_work(caller))) return error;
  uint64_t sequence = 0;
  error = send(caller, launch, *function, parameters, stream, sequence);
  if (!error) {
    note_stream_work(caller, stream, sequence);
    note_events(caller, launch, stream, sequence);
    if (may_wait_for_host(caller, parameters, *function) && !capture_of(caller, stream)) [[unlikely]]
      caller.server->in_flight.note_standing(caller, stream, sequence, Awaits::program);
  }
  return error;
}

}  // namespace

CUresult cuLaunchKernel(const Caller& caller, CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void** kernelParams, void** extra,
                        bool per_thread) {
  return launch_kernel(caller,
                       {.function = f,
                        .shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                        .stream = hStream,
                        .per_thread = per_thread,
                        .kernel_params = kernelParams,
                        .extra = extra});
}

CUresult cuLaunchCooperativeKernel(const Caller& caller, CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                   unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams, bool per_thread) {
  return launch_kernel(caller,
                       {.function = f,
                        .shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                        .stream = hStream,
                        .per_thread = per_thread,
                        .cooperative = true,
                        .kernel_params = kernelParams});
}

CUresult cuLaunchKernelEx(const Caller& caller, const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra, bool per_thread) {
  return launch_kernel(caller, {.function = f,
                                .shape = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                                          config->sharedMemBytes},
                                .stream = config->hStream,
                                .per_thread = per_thread,
                                .attributes = {config->attrs, config->numAttrs},
                                .kernel_params = kernelParams,
                                .extra = extra});
}

}  // namespace gpuwire::client::hand
