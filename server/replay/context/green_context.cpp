// Device resources, and green contexts with them.
#include <algorithm>
#include <vector>

#include "schema/api_green_context.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/device/device_resources.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

// Returns the driver's own bytes for the client's ticket. Null: `incoming` has failed.
const CUdevResource* resource_of(Replay& replay, Incoming& incoming, const CUdevResource& sealed) {
  const CUdevResource* native = replay.state().device_resources().find(sealed);
  if (sealed.type == CU_DEV_RESOURCE_TYPE_INVALID) incoming.fail(CUDA_ERROR_INVALID_RESOURCE_TYPE);
  if (!native) incoming.fail(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  return native;
}

// Answers a query for one resource.
template <class Results>
void answer(Replay& replay, Incoming& incoming, CUresult result, const CUdevResource& native) {
  ReplyMessage<Results> reply(sizeof native, 1);
  if (!result) {
    CUdevResource sealed = replay.state().device_resources().seal(native);
    reply.results().setResource(bytes_of(&sealed, sizeof sealed));
  }
  incoming.reply(reply.message(), reply.results(), result);
}

}  // namespace

void green_create(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::GreenContext>();
  void* descriptor = nullptr;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  // Without a descriptor the context gets the whole device.
  if (params.getDescriptor() == 0 ||
      replay.handles().find(wire::HandleKind::device_resource_desc, params.getDescriptor(), descriptor)) {
    result = replay.state().contexts().create_green(params.getContext(), params.getPrimary(),
                                                    static_cast<CUdevResourceDesc>(descriptor), params.getFlags());
  }
  finish(replay, call, result);
}

void green_destroy(Replay& replay, Call& call) {
  finish(replay, call,
         replay.state().contexts().destroy_green(call.message.getRoot<schema::GreenContext>().getContext()));
}

namespace custom {

void cuDeviceGetDevResource(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuDeviceGetDevResourceParams>();
  CUdevResource native{};
  CUresult result = drive(replay.driver().cuDeviceGetDevResource, CUdevice(params.getDevice()), &native,
                          CUdevResourceType(params.getType()));
  answer<schema::CuDeviceGetDevResourceResults>(replay, incoming, result, native);
}

void cuCtxGetDevResource(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuCtxGetDevResourceParams>();
  auto context = from_word<CUcontext>(incoming.handle(wire::HandleKind::context, params.getHCtx(), false));
  CUdevResource native{};
  CUresult result = incoming.ready(true);
  if (!result)
    result = drive(replay.driver().cuCtxGetDevResource, context, &native, CUdevResourceType(params.getType()));
  answer<schema::CuCtxGetDevResourceResults>(replay, incoming, result, native);
}

void cuDevSmResourceSplitByCount(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuDevSmResourceSplitByCountParams>();
  unsigned groups = params.getNbGroups();
  size_t room = incoming.count(params.getResultValueWanted() ? groups : 0, sizeof(CUdevResource));
  CUdevResource sealed{}, remaining{};
  incoming.copy(params.getInput(), &sealed, sizeof sealed);
  // Not null if the client has a list: with NULL the call is a query.
  std::vector<CUdevResource> parts(std::max<size_t>(room, 1));
  const CUdevResource* input = resource_of(replay, incoming, sealed);
  CUresult result = incoming.ready(true);
  if (!result) {
    result = drive(replay.driver().cuDevSmResourceSplitByCount, params.getResultValueWanted() ? parts.data() : nullptr,
                   &groups, input, &remaining, params.getUseFlags(), params.getMinCount());
  }
  ReplyMessage<schema::CuDevSmResourceSplitByCountResults> reply((room + 1) * sizeof(CUdevResource), 2);
  if (!result) {
    DeviceResources& resources = replay.state().device_resources();
    parts.resize(std::min<size_t>(room, groups));
    for (CUdevResource& part : parts) part = resources.seal(part);
    remaining = resources.seal(remaining);
    auto results = reply.results();
    results.setNbGroups(groups);
    results.setRemaining(bytes_of(&remaining, sizeof remaining));
    results.setResultValue(bytes_of(parts.data(), parts.size() * sizeof(CUdevResource)));
  }
  incoming.reply(reply.message(), reply.results(), result);
}

void cuDevResourceGenerateDesc(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuDevResourceGenerateDescParams>();
  size_t count = incoming.count(params.getNbResources(), sizeof(CUdevResource));
  std::vector<CUdevResource> resources(count);
  incoming.copy(params.getResources(), resources.data(), count * sizeof(CUdevResource));
  if (count == 0) incoming.fail(CUDA_ERROR_INVALID_VALUE);  // the driver does not check this
  for (CUdevResource& resource : resources) {
    if (const CUdevResource* native = resource_of(replay, incoming, resource)) resource = *native;
  }
  CUdevResourceDesc descriptor = nullptr;
  CUresult result = incoming.ready(true);
  if (!result)
    result = drive(replay.driver().cuDevResourceGenerateDesc, &descriptor, resources.data(), unsigned(count));
  if (!result) incoming.insert(wire::HandleKind::device_resource_desc, params.getPhDesc(), word(descriptor));
  incoming.finish(result);
}

}  // namespace custom

}  // namespace gpuwire::server
