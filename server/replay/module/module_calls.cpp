// Program images: offered, sent, loaded, unloaded.
#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/wire/limits.hpp"
#include "schema/api_library.capnp.h"
#include "server/driver_table.hpp"
#include "server/hand.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/module/driver_image.hpp"
#include "server/replay/module/jit_options.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/module/printing.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

CUresult load_library(const DriverTable& driver, const void* bytes, JitOptions& options, CUlibrary& library) {
  CUlibraryOption names[] = {CU_LIBRARY_BINARY_IS_PRESERVED};
  void* values[] = {reinterpret_cast<void*>(uintptr_t{1})};
  return drive(driver.cuLibraryLoadData, &library, bytes, options.names(), options.values(), options.count(), names,
               values, 1u);
}

// `beneath`: the library whose module it is, where it could only be loaded as one.
CUresult load(Replay& replay, uint64_t handle, const void* bytes, bool wrapped, JitOptions& options, void*& native,
              CUlibrary& beneath) {
  const DriverTable& driver = replay.driver();
  CUlibrary library = nullptr;
  if (wire::handle_kind(handle) != wire::HandleKind::module) {
    replay.state().contexts().enter_any();
    CUresult result = load_library(driver, bytes, options, library);
    native = library;
    return result;
  }
  CUmodule module = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (wrapped) {
    // cuModuleLoadDataEx of driver 580 takes no program that is still to be linked (CUDA_ERROR_INVALID_IMAGE). The
    // runtime of CUDA 11 loads one as a module by a private function; of a library it is the module all the same.
    result = load_library(driver, bytes, options, library);
    if (result == CUDA_SUCCESS) result = drive(driver.cuLibraryGetModule, &module, library);
    if (result != CUDA_SUCCESS && library) drive(driver.cuLibraryUnload, library);
    if (result == CUDA_SUCCESS) beneath = library;
  } else {
    result = drive(driver.cuModuleLoadDataEx, &module, bytes, options.count(), options.names(), options.values());
  }
  native = module;
  return result;
}

CUresult unload(Replay& replay, uint64_t handle, void* native, CUlibrary beneath) {
  if (beneath) return drive(replay.driver().cuLibraryUnload, beneath);
  if (wire::handle_kind(handle) == wire::HandleKind::module)
    return drive(replay.driver().cuModuleUnload, static_cast<CUmodule>(native));
  return drive(replay.driver().cuLibraryUnload, static_cast<CUlibrary>(native));
}

// What the client has handles for because of a module or a library: it gives them to other things afterwards.
void forget_parts(Replay& replay, const std::vector<uint64_t>& parts) {
  ModuleStore& modules = replay.state().modules();
  for (uint64_t part : parts) {
    wire::HandleKind kind = wire::handle_kind(part);
    if (void* native = nullptr; replay.handles().find(kind, part, native)) modules.forget_parameters(native);
    replay.handles().erase(kind, part);
    if (kind == wire::HandleKind::kernel) modules.forget_kernel(part);
    if (kind != wire::HandleKind::module) continue;
    if (auto* of_library = modules.loaded(part)) forget_parts(replay, std::exchange(of_library->parts, {}));
    modules.remove(part);
  }
}

bool module_or_library(uint64_t handle) {
  auto kind = wire::handle_kind(handle);
  return kind == wire::HandleKind::module || kind == wire::HandleKind::library;
}

}  // namespace

void module_offer(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleOffer>();
  ModuleStore::Offer offer = replay.state().modules().offer(read_digest(params.getDigest()), params.getBytes());
  SmallMessage<> message;
  auto reply = message.root<schema::ModuleOfferReply>();
  reply.setResult(offer == ModuleStore::Offer::no_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
  reply.setHave(offer == ModuleStore::Offer::have);
  reply.setDeferred(replay.take_deferred());
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

void module_data(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleData>();
  replay.state().modules().receive(read_digest(params.getDigest()), params.getOffset(), params.getLast(), call.bulk);
  finish(replay, call, CUDA_SUCCESS);
}

void module_load(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleLoad>();
  uint64_t handle = params.getHandle();
  if (!module_or_library(handle)) throw ProtocolFault{"module_load: neither a module's nor a library's handle"};
  ModuleStore& modules = replay.state().modules();
  // Never sent, or dropped from the cache since: the client offers it and comes again.
  auto image = modules.find(read_digest(params.getDigest()));
  std::shared_ptr<const fatbin::LinkedWrapper> wrapper;
  const void* bytes = image ? driver_image(*image, wrapper) : nullptr;
  // A library is compiled later, at its first use: there is no time to tell yet, and nobody to tell it to then.
  bool timed = wire::handle_kind(handle) == wire::HandleKind::module && !wrapper;
  auto shared =
      std::make_shared<JitOptions>(params.getJitOptions(), params.getErrorLogBytes(), params.getInfoLogBytes(), timed);
  JitOptions& options = *shared;
  CUresult result = options.result;
  bool missing = result == CUDA_SUCCESS && !image;
  if (missing) result = CUDA_ERROR_NOT_FOUND;
  if (result == CUDA_SUCCESS && !bytes) result = CUDA_ERROR_INVALID_IMAGE;
  if (result == CUDA_SUCCESS) {
    void* native = nullptr;
    CUlibrary beneath = nullptr;
    // Nothing is searched any more once a synchronising call is due anyhow.
    if (SyncDuties& duties = replay.sync_duties(); !duties.any() && may_print(image->bytes())) duties.note();
    result = load(replay, handle, bytes, wrapper != nullptr, options, native, beneath);
    if (result == CUDA_SUCCESS && !replay.handles().insert(wire::handle_kind(handle), handle, native)) {
      unload(replay, handle, native, beneath);
      result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS) {
      bool preserved = beneath || wire::handle_kind(handle) == wire::HandleKind::library;
      modules.add(handle, preserved ? ModuleStore::Loaded{image, wrapper, shared, beneath, {}} : ModuleStore::Loaded{});
    }
  }
  explain(replay, missing ? CUDA_SUCCESS : result);
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::ModuleLoadReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  reply.setErrorLog(options.error_log());
  reply.setInfoLog(options.info_log());
  reply.setWallTimeMs(options.wall_time_ms());
  reply.setMissing(missing);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, message);
}

void module_unload(Replay& replay, Call& call) {
  uint64_t handle = call.message.getRoot<schema::ModuleUnload>().getHandle();
  void* native = nullptr;
  if (!module_or_library(handle) || !replay.handles().find(wire::handle_kind(handle), handle, native)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  ModuleStore& modules = replay.state().modules();
  CUlibrary beneath = nullptr;
  if (auto* loaded = modules.loaded(handle)) {
    beneath = loaded->beneath;
    forget_parts(replay, std::exchange(loaded->parts, {}));
  }
  CUresult result = unload(replay, handle, native, beneath);
  replay.handles().erase(wire::handle_kind(handle), handle);
  // An image that the driver still reads although unloading failed would be a hazard: it stays until the session ends.
  if (result == CUDA_SUCCESS) modules.remove(handle);
  finish(replay, call, result);
}

namespace hand {

void cuLibraryGetModule(Replay& replay, Call& call) {
  Incoming incoming(replay, call, true);
  auto params = call.message.getRoot<schema::CuLibraryGetModuleParams>();
  auto library = from_word<CUlibrary>(incoming.handle(wire::HandleKind::library, params.getLibrary(), false));
  CUmodule module = nullptr;
  CUresult result = incoming.ready(true);
  if (!result) result = drive(replay.driver().cuLibraryGetModule, &module, library);
  if (!result) {
    ModuleStore& modules = replay.state().modules();
    incoming.insert(wire::HandleKind::module, params.getPMod(), word(module));
    modules.add(params.getPMod(), {});
    if (auto* whole = modules.loaded(params.getLibrary())) whole->parts.push_back(params.getPMod());
  }
  incoming.finish(result);
}

void cuKernelGetFunction(Replay& replay, Call& call) {
  Incoming incoming(replay, call, true);
  auto params = call.message.getRoot<schema::CuKernelGetFunctionParams>();
  auto kernel = from_word<CUkernel>(incoming.handle(wire::HandleKind::kernel, params.getKernel(), false));
  CUfunction function = nullptr;
  CUresult result = incoming.ready(true);
  if (!result) result = drive(replay.driver().cuKernelGetFunction, &function, kernel);
  if (!result) {
    ModuleStore& modules = replay.state().modules();
    incoming.insert(wire::HandleKind::function, params.getPFunc(), word(function));
    if (auto* whole = modules.loaded(modules.library_of(params.getKernel()))) whole->parts.push_back(params.getPFunc());
    if (const auto* parameters = modules.parameters_of(kernel))
      modules.note_parameters(function, ParameterLayout(*parameters));
  }
  incoming.finish(result);
}

}  // namespace hand

}  // namespace gpuwire::server
