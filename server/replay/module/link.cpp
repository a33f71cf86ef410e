#include "server/replay/module/link.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/module/link_input.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/module/link_thread.hpp"
#include "server/replay/module/module_work.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::server {

Link* LinkTable::find(uint64_t handle) {
  auto found = links_.find(handle);
  return found == links_.end() ? nullptr : &found->second;
}

Link* LinkTable::add(uint64_t handle) {
  if (links_.size() >= kLinksMax) return nullptr;
  auto [place, fresh] = links_.try_emplace(handle);
  return fresh ? &place->second : nullptr;
}

namespace {

void reply(Replay& replay, uint64_t sequence, CUresult result, const Link* link, bool missing = false) {
  explain(replay, missing ? CUDA_SUCCESS : result);
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schema::LinkReply>();
  out.setResult(result);
  out.setDeferred(replay.take_deferred());
  out.setMissing(missing);
  if (link && link->options) {
    out.setErrorLog(link->options->error_log());
    out.setInfoLog(link->options->info_log());
    out.setWallTimeMs(link->options->wall_time_ms());
  }
  if (link) out.setImageBytes(link->image.size());
  replay.outbox().reply(sequence, message);
}

void reply(Replay& replay, Call& call, CUresult result, const Link* link, bool missing = false) {
  call.answered = true;
  reply(replay, call.header.sequence, result, link, missing);
}

// Calls the driver on the linker's thread, and answers from there. Precondition: `link` lives until then.
void run_link(Replay& replay, Call& call, Link& link, std::function<CUresult()> drive) {
  call.answered = true;
  replay.state().link_thread().run(
      [&replay, &link, drive = std::move(drive), context = ContextElsewhere(replay), sequence = call.header.sequence] {
        context.enter();
        reply(replay, sequence, drive(), &link);
      });
}

// Calls the driver on the linker's thread, after all earlier tasks, and waits for the result.
CUresult await_link(Replay& replay, const std::function<CUresult()>& drive) {
  CUresult result = CUDA_SUCCESS;
  replay.state().link_thread().run_and_wait([&result, &drive, context = ContextElsewhere(replay)] {
    context.enter();
    result = drive();
  });
  return result;
}

// Adds an input to the link, which then owns it. Returns CUDA_SUCCESS, or the reason for a refusal.
CUresult take_input(Link& link, CUjitInputType type, std::shared_ptr<const ModuleImage> input) {
  if (link.inputs.size() >= kLinkInputsMax) return CUDA_ERROR_OUT_OF_MEMORY;
  // The charge lasts until the link ends: the driver stores its form of each input, and makes one image of all.
  auto takes = link_input_host_bytes(type, input->bytes());
  if (!takes) return CUDA_ERROR_INVALID_IMAGE;
  if (!link.charge.grow(*takes)) return CUDA_ERROR_OUT_OF_MEMORY;
  link.inputs.push_back(std::move(input));
  return CUDA_SUCCESS;
}

}  // namespace

void link_create(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::LinkCreate>();
  Link* link = replay.state().links().add(params.getState());
  if (!link) return reply(replay, call, CUDA_ERROR_OUT_OF_MEMORY, nullptr);
  link->charge = HostCharge(replay.host_memory());
  link->options =
      std::make_unique<JitOptions>(params.getJitOptions(), params.getErrorLogBytes(), params.getInfoLogBytes());
  JitOptions& options = *link->options;
  CUresult result = options.result;
  if (!result) {
    result = await_link(replay, [&] {
      return drive(replay.driver().cuLinkCreate_v2, options.count(), options.names(), options.values(), &link->native);
    });
  }
  reply(replay, call, result, link);
  if (result) replay.state().links().remove(params.getState());
}

void link_add(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::LinkAdd>();
  Link* link = replay.state().links().find(params.getState());
  if (!link) return reply(replay, call, CUDA_ERROR_INVALID_HANDLE, nullptr);
  auto input = replay.state().modules().find(read_digest(params.getDigest()));
  if (!input) return reply(replay, call, CUDA_ERROR_NOT_FOUND, nullptr, true);
  if (params.getName().size() > wire::kNameBytesMax) throw ProtocolFault{"link_add: a name over the limit"};
  const auto type = CUjitInputType(params.getType());
  auto options = std::make_shared<JitOptions>(params.getJitOptions(), 0, 0, false);
  CUresult result = options->result ? options->result : take_input(*link, type, input);
  if (result) {
    await_link(replay, [] { return CUDA_SUCCESS; });  // waits until the linker's thread no longer uses the logs
    return reply(replay, call, result, link);
  }
  run_link(replay, call, *link,
           [&driver = replay.driver(), native = link->native, type, options, input,
            name = std::string(params.getName().cStr(), params.getName().size())] {
             auto* bytes = const_cast<std::byte*>(input->bytes().data());  // the driver does not write to it
             return drive(driver.cuLinkAddData_v2, native, type, static_cast<void*>(bytes), input->bytes().size(),
                          name.c_str(), options->count(), options->names(), options->values());
           });
}

void link_complete(Replay& replay, Call& call) {
  Link* link = replay.state().links().find(call.message.getRoot<schema::LinkState>().getState());
  if (!link) return reply(replay, call, CUDA_ERROR_INVALID_HANDLE, nullptr);
  run_link(replay, call, *link, [&driver = replay.driver(), link] {
    void* image = nullptr;
    size_t bytes = 0;
    CUresult result = drive(driver.cuLinkComplete, link->native, &image, &bytes);
    link->image = result ? std::span<const std::byte>() : std::span(static_cast<const std::byte*>(image), bytes);
    return result;
  });
}

void link_image(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::LinkImage>();
  await_link(replay, [] { return CUDA_SUCCESS; });
  Link* link = replay.state().links().find(params.getState());
  uint64_t size = link ? link->image.size() : 0, offset = params.getOffset(), bytes = params.getBytes();
  if (offset > size || bytes > size - offset || bytes > wire::reply_bulk_bytes_max(wire::SessionOrdinal::link_image))
    throw ProtocolFault{"link_image: more than there is"};
  call.answered = true;
  send_result(replay, call.header.sequence, CUDA_SUCCESS,
              link ? link->image.subspan(offset, bytes) : std::span<const std::byte>());
}

void link_destroy(Replay& replay, Call& call) {
  uint64_t handle = call.message.getRoot<schema::LinkState>().getState();
  Link* link = replay.state().links().find(handle);
  if (!link) return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  CUresult result = await_link(replay, [&] { return drive(replay.driver().cuLinkDestroy, link->native); });
  replay.state().links().remove(handle);
  finish(replay, call, result);
}

}  // namespace gpuwire::server
