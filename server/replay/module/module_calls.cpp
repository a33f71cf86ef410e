// Calls that offer, send, load and unload program images.
#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/wire/limits.hpp"
#include "schema/api_library.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/module/driver_image.hpp"
#include "server/replay/module/jit_options.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/module/module_work.hpp"
#include "server/replay/module/printing.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

CUresult load_library(const DriverTable& driver, const void* bytes, JitOptions& options, CUlibrary& library) {
  CUlibraryOption names[] = {CU_LIBRARY_BINARY_IS_PRESERVED};
  void* values[] = {reinterpret_cast<void*>(uintptr_t{1})};
  return drive(driver.cuLibraryLoadData, &library, bytes, options.names(), options.values(), options.count(), names,
               values, 1u);
}

// One load. The executor fills it in, a waiter runs it, and the executor records its result.
struct Load {
  uint64_t handle, sequence;
  std::shared_ptr<const ModuleImage> image;
  std::shared_ptr<const fatbin::LinkedWrapper> wrapper;
  const void* bytes = nullptr;  // the driver's form of the image; null: the image is not well-formed
  std::shared_ptr<JitOptions> options;
  std::shared_ptr<void*> native;  // shared with later look-ups, which read the loaded module or library from it
  CUlibrary beneath = nullptr;    // the library of this module, if the image could only be loaded as a library
  CUresult result = CUDA_SUCCESS;
  bool missing = false;  // the image was never sent, or was evicted: the client offers it and loads again

  wire::HandleKind kind() const { return wire::handle_kind(handle); }
  void run(const DriverTable& driver);
  CUresult load_module(const DriverTable& driver);
};

void Load::run(const DriverTable& driver) {
  if (kind() == wire::HandleKind::module) {
    result = load_module(driver);
    return;
  }
  CUlibrary library = nullptr;
  result = load_library(driver, bytes, *options, library);
  *native = library;
}

CUresult Load::load_module(const DriverTable& driver) {
  CUmodule module = nullptr;
  if (!wrapper) {
    CUresult loaded =
        drive(driver.cuModuleLoadDataEx, &module, bytes, options->count(), options->names(), options->values());
    *native = module;
    return loaded;
  }
  // cuModuleLoadDataEx of driver 580 refuses a program that still has to be linked (CUDA_ERROR_INVALID_IMAGE). The
  // runtime of CUDA 11 loads such a program as a module by a private function; loading it as a library and taking the
  // library's module has the same result.
  CUlibrary library = nullptr;
  CUresult loaded = load_library(driver, bytes, *options, library);
  if (loaded == CUDA_SUCCESS) loaded = drive(driver.cuLibraryGetModule, &module, library);
  if (loaded != CUDA_SUCCESS && library) drive(driver.cuLibraryUnload, library);
  if (loaded == CUDA_SUCCESS) beneath = library;
  *native = module;
  return loaded;
}

// Records the end of a load. Executor, before frames of a client that knows the load's result.
void note_load(Replay& replay, const Load& load) {
  ModuleStore& modules = replay.state().modules();
  modules.end_loading(load.handle);
  const bool loaded = load.result == CUDA_SUCCESS;
  replay.handles().settle(load.kind(), load.handle, loaded ? *load.native : nullptr);
  if (!loaded) return;
  const bool preserved = load.beneath || load.kind() == wire::HandleKind::library;
  modules.add(load.handle, preserved
                               ? ModuleStore::Loaded{load.image, load.wrapper, load.options, load.beneath, {}, false}
                               : ModuleStore::Loaded{});
}

void answer_load(Replay& replay, const Load& load) {
  explain(replay, load.missing ? CUDA_SUCCESS : load.result);
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::ModuleLoadReply>();
  reply.setResult(load.result);
  reply.setDeferred(replay.take_deferred());
  reply.setErrorLog(load.options->error_log());
  reply.setInfoLog(load.options->info_log());
  reply.setWallTimeMs(load.options->wall_time_ms());
  reply.setMissing(load.missing);
  replay.outbox().reply(load.sequence, message);
}

// Returns the reason for not calling the driver; CUDA_SUCCESS: the driver is to load the image, and the handle is
// pending.
CUresult prepare(Replay& replay, Load& load) {
  if (load.options->result) return load.options->result;
  load.missing = !load.image;
  if (load.missing) return CUDA_ERROR_NOT_FOUND;
  if (!load.bytes) return CUDA_ERROR_INVALID_IMAGE;
  if (!replay.handles().insert_pending(load.kind(), load.handle)) return CUDA_ERROR_INVALID_HANDLE;
  load.native = replay.state().modules().begin_loading(load.handle);
  // The image is not searched if a synchronising call is due anyhow.
  if (SyncDuties& duties = replay.sync_duties(); !duties.any() && may_print(load.image->bytes())) duties.note();
  return CUDA_SUCCESS;
}

CUresult unload(const DriverTable& driver, uint64_t handle, void* native, CUlibrary beneath) {
  if (beneath) return drive(driver.cuLibraryUnload, beneath);
  if (wire::handle_kind(handle) == wire::HandleKind::module)
    return drive(driver.cuModuleUnload, static_cast<CUmodule>(native));
  return drive(driver.cuLibraryUnload, static_cast<CUlibrary>(native));
}

// Forgets the handles of the functions and modules in a module or library, since the client reuses their numbers
// afterwards.
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
  auto load = std::make_shared<Load>(Load{.handle = handle, .sequence = call.header.sequence});
  load->image = replay.state().modules().find(read_digest(params.getDigest()));
  if (load->image) load->bytes = driver_image(*load->image, load->wrapper);
  // A library is compiled later, at its first use, so its load has no compile time to report.
  bool timed = load->kind() == wire::HandleKind::module && !load->wrapper;
  load->options =
      std::make_shared<JitOptions>(params.getJitOptions(), params.getErrorLogBytes(), params.getInfoLogBytes(), timed);
  load->result = prepare(replay, *load);
  call.answered = true;
  if (load->result != CUDA_SUCCESS) return answer_load(replay, *load);
  if (load->kind() == wire::HandleKind::library) replay.state().contexts().enter_any();
  replay.state().module_work().run(handle, {.drive =
                                                [load, &driver = replay.driver(), context = ContextElsewhere(replay)] {
                                                  context.enter();
                                                  load->run(driver);
                                                },
                                            .note = [&replay, load] { note_load(replay, *load); },
                                            .answer = [&replay, load] { answer_load(replay, *load); }});
}

void module_unload(Replay& replay, Call& call) {
  uint64_t handle = call.message.getRoot<schema::ModuleUnload>().getHandle();
  void* native = nullptr;
  if (!module_or_library(handle) || !replay.handles().find(wire::handle_kind(handle), handle, native)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  replay.state().module_work().await(handle);
  CUlibrary beneath = nullptr;
  if (auto* loaded = replay.state().modules().loaded(handle)) {
    beneath = loaded->beneath;
    forget_parts(replay, std::exchange(loaded->parts, {}));
  }
  replay.handles().erase(wire::handle_kind(handle), handle);
  auto result = std::make_shared<CUresult>();
  // If unloading fails, the driver may still read the image, so the image stays until the session ends.
  auto note = [&replay, handle, result] {
    if (*result == CUDA_SUCCESS) replay.state().modules().remove(handle);
  };
  // Unloading waits for the context's work, and that work may wait for the client: then a waiter unloads.
  if (replay.state().callbacks().unanswered() == 0) {
    *result = unload(replay.driver(), handle, native, beneath);
    note();
    return finish(replay, call, *result);
  }
  const bool called = call.header.kind == uint8_t(wire::FrameKind::called);
  call.answered = called;
  replay.state().module_work().run(
      handle, {.drive =
                   [&driver = replay.driver(), handle, native, beneath, result, context = ContextElsewhere(replay)] {
                     context.enter();
                     *result = unload(driver, handle, native, beneath);
                   },
               .note = note,
               .answer =
                   [&replay, result, header = call.header, called] {
                     if (called) send_result(replay, header.sequence, *result);
                     else if (*result != CUDA_SUCCESS) replay.fail_posted(header, *result);
                   }});
}

namespace custom {

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

}  // namespace custom

}  // namespace gpuwire::server
