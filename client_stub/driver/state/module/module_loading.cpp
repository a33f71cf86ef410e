// Loads an image at the server: by its digest first; if the server does not have the image, the client offers it, sends
// it and tries again.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/account.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/module/image_uploads.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/session/transfer_progress.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

constexpr size_t kImagePieceBytes = wire::kPostedBulkBytesMax;
constexpr int kLoadAttemptsMax = 3;

// JIT options that hold addresses of the program: arrays of names and of addresses.
bool holds_pointers(CUjit_option option) {
  return option == CU_JIT_GLOBAL_SYMBOL_NAMES || option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES;
}

CUresult offer_image(const Caller& caller, const ProgramImage& image, bool& have) {
  return send::call_module_offer(*caller.session, caller.context, {.digest = image.digest(), .bytes = image.bytes()},
                                 [&](schema::ModuleOfferReply::Reader results) { have = results.getHave(); });
}

CUresult send_image(const Caller& caller, const ProgramImage& image) {
  LongTransfer transfer = long_transfer(*caller.session, Direction::to_gpu, image.bytes());
  for (uint64_t offset = 0; offset < image.bytes();) {
    size_t bytes = std::min<uint64_t>(kImagePieceBytes, image.bytes() - offset);
    std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t at, std::span<std::byte> out) {
      image.read(offset + at, out);
    };
    Bulk bulk{.bytes = bytes, .gather = &gather};
    CUresult error = send::post_module_data(
        *caller.session, caller.context,
        {.digest = image.digest(), .offset = offset, .last = offset + bytes == image.bytes()}, bulk);
    if (error) return error;
    offset += bytes;
  }
  transfer.posted(caller.session->appended_bytes());
  return CUDA_SUCCESS;
}

// Stores as much of the text as the program's buffer holds, and a zero. The number of bytes without the zero replaces
// the size; for a full buffer it includes the zero (measured on driver 580). The server has cut the text to that size.
void store_log(std::string_view text, char* buffer, uint32_t buffer_bytes, void** filled) {
  if (!buffer || buffer_bytes == 0) return;
  const size_t most = buffer_bytes - 1, count = std::min(text.size(), most);
  std::memcpy(buffer, text.data(), count);
  buffer[count] = 0;
  if (filled) *filled = reinterpret_cast<void*>(uintptr_t(count == most ? buffer_bytes : count));
}

CUresult begin_load(const Caller& caller, const ProgramImage& image, uint64_t handle, const LoadOptions& options,
                    uint64_t& sequence) {
  caller.server->cached_memory.give_back_but_profiled(caller);  // load_image() frees profiled blocks if memory is short
  return send::begin_module_load(*caller.session, caller.context,
                                 {.handle = handle,
                                  .digest = image.digest(),
                                  .jit_options = options.jit,
                                  .library_options = options.library,
                                  .error_log_bytes = options.error_log_bytes,
                                  .info_log_bytes = options.info_log_bytes},
                                 sequence);
}

std::string_view text_of(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

// `missing`: the image must be sent to the server first.
CUresult finish_load(const Caller& caller, const LoadOptions& options, uint64_t sequence, bool& missing) {
  return send::finish_module_load(*caller.session, sequence, [&](schema::ModuleLoadReply::Reader results) {
    missing = results.getMissing();
    if (missing) return;
    options.store_logs(text_of(results.getErrorLog()), text_of(results.getInfoLog()), results.getWallTimeMs());
  });
}

}  // namespace

void LoadOptions::store_logs(std::string_view error_text, std::string_view info_text, float wall_time_ms) const {
  store_log(error_text, error_log, error_log_bytes, error_log_filled);
  store_log(info_text, info_log, info_log_bytes, info_log_filled);
  if (wall_time) std::memcpy(wall_time, &wall_time_ms, sizeof wall_time_ms);
}

// Offers the image, and sends it unless another thread has done so meanwhile. Other images may be sent concurrently,
// one for each lock; two threads that sent the same image would mix its pieces.
CUresult deliver_image(const Caller& caller, const ProgramImage& image) {
  std::lock_guard lock(caller.server->image_uploads.lock_for(image.digest()[0]));
  bool have = false;
  if (CUresult error = offer_image(caller, image, have)) return error;
  if (have) return CUDA_SUCCESS;
  if (CUresult error = send_image(caller, image)) return error;
  image_traffic().sent.fetch_add(1, std::memory_order_relaxed);
  image_traffic().sent_bytes.fetch_add(image.bytes(), std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult LoadOptions::parse(unsigned count, const CUjit_option* options, void** values, LoadOptions& out) {
  if (count > 0 && (!options || !values)) return CUDA_ERROR_INVALID_VALUE;
  if (count > wire::kListItemsMax) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    auto value = reinterpret_cast<uint64_t>(values[i]);
    switch (options[i]) {
      case CU_JIT_WALL_TIME: out.wall_time = &values[i]; break;
      case CU_JIT_INFO_LOG_BUFFER: out.info_log = static_cast<char*>(values[i]); break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        out.info_log_bytes = uint32_t(value);
        out.info_log_filled = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER: out.error_log = static_cast<char*>(values[i]); break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        out.error_log_bytes = uint32_t(value);
        out.error_log_filled = &values[i];
        break;
      default:
        if (holds_pointers(options[i])) return CUDA_ERROR_NOT_SUPPORTED;
        out.jit.push_back({.option = options[i], .value = value});
    }
  }
  // All logs travel in one message.
  constexpr uint32_t kLogBytesMax = wire::kMessageWordsMax * 8 / 4;
  out.error_log_bytes = out.error_log ? std::min(out.error_log_bytes, kLogBytesMax) : 0;
  out.info_log_bytes = out.info_log ? std::min(out.info_log_bytes, kLogBytesMax) : 0;
  return CUDA_SUCCESS;
}

ImageTarget image_target() {
  ImageTarget target;
  Process* owner = process();
  if (!owner) return target;
  target.ptx_only = owner->server->connection().facts().software;
  for (const Device& device : owner->devices) {
    const auto& attributes = device.facts->attributes;
    if (attributes.size() <= CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) continue;
    fatbin::ComputeCapability capability{uint32_t(attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]),
                                         uint32_t(attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR])};
    auto same = [&](const fatbin::ComputeCapability& other) {
      return other.major == capability.major && other.minor == capability.minor;
    };
    if (std::none_of(target.devices.begin(), target.devices.end(), same)) target.devices.push_back(capability);
  }
  return target;
}

// The first attempt assumes that the server has the image, which is true for every program but the first.
CUresult load_image(const Caller& caller, const ProgramImage& image, uint64_t handle, const LoadOptions& options,
                    FunctionQuestions* along, const std::function<void()>& meanwhile) {
  if (image.bytes() > wire::kModuleBytesMax) return CUDA_ERROR_OUT_OF_MEMORY;
  image_traffic().used.fetch_add(1, std::memory_order_relaxed);
  bool freed = false;
  for (int attempt = 0; attempt < kLoadAttemptsMax; ++attempt) {
    uint64_t sequence = 0;
    if (CUresult error = begin_load(caller, image, handle, options, sequence)) return error;
    CUresult asked = along ? along->begin(caller) : CUDA_SUCCESS;
    // The program's other profiled images follow the requested one.
    caller.server->prefetched_images.prefetch(caller, image.digest());
    if (meanwhile && attempt == 0) {
      caller.session->flush();
      meanwhile();
    }
    bool missing = false;
    CUresult result = finish_load(caller, options, sequence, missing);
    if (result == CUDA_SUCCESS) return asked;
    if (along && asked == CUDA_SUCCESS) along->drop(caller);
    // The missing memory may be cached blocks that could not be released without a wait.
    if (!missing && result == CUDA_ERROR_OUT_OF_MEMORY && !std::exchange(freed, true) && free_cached_memory(caller))
      continue;
    if (!missing) return result;
    if (CUresult error = deliver_image(caller, image)) return error;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;  // the server drops the image faster than it can be used
}

CUresult log_unusable(const ImageTarget& target, const ImageError& error) {
  if (target.ptx_only || error.result != CUDA_ERROR_NO_BINARY_FOR_GPU)
    log_stderr("a library cannot be loaded: " + error.message);
  return error.result;
}

CUresult ensure_loaded(const Caller& caller, ModuleState& state, FunctionQuestions* along) {
  if (state.loaded) return *state.loaded;
  std::shared_ptr<const ProgramImage> image = state.image;
  if (!image) {
    ImageTarget target = image_target();
    auto selected = ProgramImage::select(state.code, target, false);
    if (!selected) {
      state.loaded = log_unusable(target, selected.error());
      return *state.loaded;
    }
    image = *selected;
  }
  note_image(state, image->digest());
  const bool stays = !state.image;  // the bytes are the program's, and live as long as it
  const bool plain = state.kind == wire::HandleKind::library && state.options.plain();
  if (plain) state.unwritten = image->digest();
  if (plain && caller.server->prefetched_images.take(caller, image->digest(), state)) {
    image_traffic().used.fetch_add(1, std::memory_order_relaxed);
    state.parameters->read(image, stays);
    state.image.reset();
    state.loaded = CUDA_SUCCESS;
    return CUDA_SUCCESS;
  }
  if (along) along->prefetch(caller);
  CUresult result =
      load_image(caller, *image, state.handle, state.options, along, [&] { state.parameters->read(image, stays); });
  // An error of the session, which has ended, is not the library's result.
  if (caller.session->state() == CUDA_SUCCESS) state.loaded = result;
  state.image.reset();
  if (result != CUDA_SUCCESS && !state.loaded) state.image = image;
  return result;
}

}  // namespace gpuwire::client
