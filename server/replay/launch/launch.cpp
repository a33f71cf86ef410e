// Kernel launches, whose cost decides the speed of a session.
#include <cstring>
#include <memory>

#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

constexpr uint64_t kAttributeBytes = sizeof(CUlaunchAttribute);

// A CUkernel has its own kind of handle; the driver accepts it in place of a CUfunction (CUDA driver API,
// cuLaunchKernel).
bool find_function(Replay& replay, uint64_t handle, CUfunction& function) {
  void* native = nullptr;
  auto kind = wire::handle_kind(handle);
  if (kind != wire::HandleKind::function && kind != wire::HandleKind::kernel) return false;
  if (!replay.handles().find(kind, handle, native)) return false;
  function = static_cast<CUfunction>(native);
  return true;
}

bool translate_event(Replay& replay, CUevent& event) {
  if (!event) return true;
  void* native = nullptr;
  if (!replay.handles().find(wire::HandleKind::event, reinterpret_cast<uint64_t>(event), native)) return false;
  event = static_cast<CUevent>(native);
  return true;
}

// Returns the attribute's ID as a number, because a value from the network need not be in the enumeration.
int id_of(const CUlaunchAttribute& attribute) {
  static_assert(sizeof attribute.id == sizeof(int));
  int id = 0;
  std::memcpy(&id, &attribute.id, sizeof id);
  return id;
}

// Only the attributes named here are accepted: an attribute of a newer header is unknown and may hold a pointer.
CUresult translate_attribute(Replay& replay, CUlaunchAttribute& attribute) {
  switch (id_of(attribute)) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return translate_event(replay, attribute.value.programmaticEvent.event) ? CUDA_SUCCESS
                                                                              : CUDA_ERROR_INVALID_HANDLE;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return translate_event(replay, attribute.value.launchCompletionEvent.event) ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_INVALID_HANDLE;
    default:  // CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE gives back a handle, which a launch cannot
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult launch_with_attributes(Replay& replay, schema::Launch::Reader params, CUfunction function, CUstream stream,
                                void** extra) {
  auto data = params.getAttributes();
  if (data.size() % kAttributeBytes != 0) throw ProtocolFault{"launch: attributes of a wrong size"};
  size_t count = data.size() / kAttributeBytes;
  if (count > wire::kLaunchAttributesMax) throw ProtocolFault{"launch: too many attributes"};
  CUlaunchAttribute attributes[wire::kLaunchAttributesMax + 1];
  if (count) std::memcpy(attributes, data.begin(), data.size());
  bool cooperative = false;
  for (size_t i = 0; i < count; ++i) {
    if (CUresult error = translate_attribute(replay, attributes[i])) return error;
    cooperative |= id_of(attributes[i]) == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  }
  if (params.getCooperative() && !cooperative) {
    std::memset(&attributes[count], 0, kAttributeBytes);
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[count].value.cooperative = 1;
    ++count;
  }
  CUlaunchConfig config{};
  config.gridDimX = params.getGridX();
  config.gridDimY = params.getGridY();
  config.gridDimZ = params.getGridZ();
  config.blockDimX = params.getBlockX();
  config.blockDimY = params.getBlockY();
  config.blockDimZ = params.getBlockZ();
  config.sharedMemBytes = params.getSharedBytes();
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = unsigned(count);
  return drive(replay.driver().cuLaunchKernelEx, static_cast<const CUlaunchConfig*>(&config), function,
               static_cast<void**>(nullptr), extra);
}

// Answers a called launch (CUDA_LAUNCH_BLOCKING): the reply is sent when the kernel has ended, and has the kernel's
// result.
void answer_when_done(Replay& replay, Call& call, CUstream stream) {
  Context* context = replay.state().contexts().current();
  auto event = std::make_shared<PooledEvent>(context ? context->events->take() : PooledEvent{});
  CUresult result = *event ? drive(replay.driver().cuEventRecord, event->get(), stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) return finish(replay, call, result);
  DeviceWait wait;
  wait.query = [&replay, event] { return drive(replay.driver().cuEventQuery, event->get()); };
  wait.wait = [&replay, event] { return wait_for_event(replay.driver(), event->get()); };
  wait.events = [event] { return std::vector{event->get()}; };
  wait.finish = [&replay, event, sequence = call.header.sequence](CUresult waited) {
    waited = settle(replay, event->get(), waited);
    deliver_finished_work(replay);
    send_result(replay, sequence, waited);
  };
  replay.poll_or_defer(call, std::move(wait));
}

// Returns whether the stream captures. A captured launch has no end to wait for.
bool capturing(Replay& replay, CUstream stream) { return refuse_capture(replay, stream) != CUDA_SUCCESS; }

}  // namespace

void launch(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::Launch>();
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  if (!find_function(replay, params.getFunction(), function) || !find_stream(replay, params.getStream(), stream)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE, "launch: no such kernel or stream");
  }
  auto parameters = params.getParameters();
  if (parameters.size() > wire::kLaunchParameterBytesMax) throw ProtocolFault{"launch: parameters too large"};
  size_t parameter_bytes = parameters.size();
  // One packed buffer serves every kernel (CU_LAUNCH_PARAM_BUFFER_POINTER), and the driver copies it before it returns.
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<capnp::byte*>(parameters.begin()),
                    CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
  void** extra = parameter_bytes ? packed : nullptr;
  CUresult result;
  if (params.getCooperative() || params.hasAttributes()) {
    result = launch_with_attributes(replay, params, function, stream, extra);
  } else {
    result = drive(replay.driver().cuLaunchKernel, function, params.getGridX(), params.getGridY(), params.getGridZ(),
                   params.getBlockX(), params.getBlockY(), params.getBlockZ(), params.getSharedBytes(), stream,
                   static_cast<void**>(nullptr), extra);
  }
  if (result == CUDA_SUCCESS && call.header.kind == uint8_t(wire::FrameKind::called) && !capturing(replay, stream))
      [[unlikely]] {
    return answer_when_done(replay, call, stream);
  }
  finish(replay, call, result);
}

}  // namespace gpuwire::server
