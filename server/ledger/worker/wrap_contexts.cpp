// Contexts and their limits.
#include <algorithm>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/frame_charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"
#include "server/ledger/worker/library_charges.hpp"
#include "server/ledger/worker/pool_charges.hpp"

namespace gpuwire::server {

namespace {

// Whether a limit also takes host memory: the text of device printf passes through a host buffer.
bool is_mirrored(CUlimit limit) { return limit == CU_LIMIT_PRINTF_FIFO_SIZE; }

}  // namespace

void ContextCharges::give_back(CUdevice device, uint64_t bytes) {
  if (auto column = parts_.column(device)) parts_.ledger.give_back(*column, bytes);
}

void ContextCharges::created(CUcontext context, CUdevice device, uint64_t bytes, uint64_t host_bytes) {
  MutexLock lock(mutex_);
  contexts_[context] = {.device = device, .bytes = bytes, .host_bytes = host_bytes};
}

void ContextCharges::gone(CUcontext context) {
  for (HeldBook* registry :
       {&parts_.memory, &parts_.host, &parts_.arrays, &parts_.modules, &parts_.module_code, &parts_.streams})
    registry->drop(context);
  parts_.libraries->drop(context);
  parts_.frames->forget();
  parts_.pools->memory_was_freed();
  parts_.graphs->settle();
  parts_.graphs->drop(context);
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  uint64_t bytes = found->second.bytes;
  for (const auto& [limit, more] : found->second.limits) {
    bytes += more.charged;
    if (is_mirrored(limit)) parts_.ledger.give_back(kHostColumn, more.charged);
  }
  give_back(found->second.device, bytes);
  parts_.ledger.give_back(kHostColumn, found->second.host_bytes);
  contexts_.erase(found);
}

bool ContextCharges::charge_warm_primary() {
  MutexLock lock(primaries_mutex_);
  CUcontext context = nullptr;
  // The context's host memory was allocated before the session.
  CUresult result = create_with(0, &context, 0, [&] {
    CUresult retained = parts_.driver.cuDevicePrimaryCtxRetain(&context, 0);
    return retained ? retained : parts_.driver.cuDevicePrimaryCtxRelease_v2(0);
  });
  if (result == CUDA_SUCCESS) primaries_[0] = context;
  return result == CUDA_SUCCESS;
}

CUresult ContextCharges::retain_primary(CUcontext* context, CUdevice device) {
  MutexLock lock(primaries_mutex_);
  auto retain = [&] { return parts_.driver.cuDevicePrimaryCtxRetain(context, device); };
  if (primaries_.contains(device)) return retain();
  CUresult result = create(context, device, retain);
  if (result == CUDA_SUCCESS) primaries_[device] = *context;
  return result;
}

// The driver counts all references: only whether the context still exists afterwards matters.
CUresult ContextCharges::ended(CUdevice device, CUresult result) {
  unsigned flags = 0;
  int active = 1;
  auto found = primaries_.find(device);
  if (found == primaries_.end() || !parts_.driver.cuDevicePrimaryCtxGetState) return result;
  if (parts_.driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active) return result;
  CUcontext context = found->second;
  primaries_.erase(found);
  gone(context);
  return result;
}

CUresult ContextCharges::release_primary(CUdevice device) {
  MutexLock lock(primaries_mutex_);
  return ended(device, parts_.driver.cuDevicePrimaryCtxRelease_v2(device));
}

CUresult ContextCharges::reset_primary(CUdevice device) {
  MutexLock lock(primaries_mutex_);
  return ended(device, parts_.driver.cuDevicePrimaryCtxReset_v2(device));
}

std::optional<Place> ContextCharges::place_of(CUcontext context) const {
  context = owner(context);
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  if (found == contexts_.end()) return std::nullopt;
  auto column = parts_.column(found->second.device);
  return column ? std::optional<Place>({context, found->second.device, *column}) : std::nullopt;
}

CUcontext ContextCharges::primary(CUdevice device) {
  MutexLock lock(primaries_mutex_);
  auto found = primaries_.find(device);
  return found == primaries_.end() ? nullptr : found->second;
}

CUresult ContextCharges::destroy(CUcontext context) {
  CUresult result = parts_.driver.cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS) gone(context);
  return result;
}

// Returns the device memory for a limit of this size.
uint64_t ContextCharges::limit_bytes(CUdevice device, CUlimit limit, uint64_t value) const {
  int processors = 0, threads = 0;
  switch (limit) {
    case CU_LIMIT_STACK_SIZE:  // for every thread that can be resident
      if (parts_.driver.cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
          CUDA_SUCCESS)
        return 0;
      if (parts_.driver.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
          CUDA_SUCCESS)
        return 0;
      return product(value, uint64_t(processors) * uint64_t(threads));
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE: return value;
    default: return 0;
  }
}

ContextCharges::Limit* ContextCharges::limit_of(CUcontext context, CUdevice device, CUlimit limit) {
  size_t now = 0;
  auto get = parts_.driver.cuCtxGetLimit;
  if (!get || get(&now, limit) != CUDA_SUCCESS) return nullptr;
  MutexLock lock(mutex_);
  Charged& charged = contexts_.try_emplace(context, Charged{.device = device}).first->second;
  return &charged.limits.try_emplace(limit, Limit{.fresh = limit_bytes(device, limit, now)}).first->second;
}

CUresult ContextCharges::set_limit(CUlimit limit, size_t value) {
  Place place;
  if (CUresult error = parts_.here(place)) return error;
  MutexLock lock(limits_mutex_);
  Limit* known = limit_of(place.context, place.device, limit);
  if (!known) return parts_.driver.cuCtxSetLimit(limit, value);
  auto beyond = [&](uint64_t at) {
    return limit_bytes(place.device, limit, at) - std::min(known->fresh, limit_bytes(place.device, limit, at));
  };
  const uint64_t before = known->charged, wanted = beyond(value);
  const uint64_t most = wanted - std::min(wanted, before);
  size_t was = 0;
  if (parts_.driver.cuCtxGetLimit(&was, limit) != CUDA_SUCCESS) return parts_.driver.cuCtxSetLimit(limit, value);
  // The driver may set a lower limit, or raise it to its own minimum.
  auto has = [&] {
    size_t now = 0;
    return parts_.driver.cuCtxGetLimit(&now, limit) == CUDA_SUCCESS ? beyond(now) : wanted;
  };
  auto grown = [&] { return has() - std::min(has(), before); };
  uint64_t on_device = 0;
  auto back = [&] { parts_.driver.cuCtxSetLimit(limit, was); };
  auto set = [&] {
    return take(
        parts_.ledger, place.column, most, [&] { return parts_.driver.cuCtxSetLimit(limit, value); }, grown,
        [&](uint64_t bytes) { on_device = bytes; }, back);
  };
  CUresult result = !is_mirrored(limit) ? set()
                                        : take(
                                              parts_.ledger, kHostColumn, most, set, grown, [](uint64_t) {},
                                              [&] {
                                                back();
                                                parts_.ledger.give_back(place.column, on_device);
                                              });
  if (result != CUDA_SUCCESS) return result;
  known->charged = has();
  const uint64_t shrunk = before - std::min(before, known->charged);
  parts_.ledger.give_back(place.column, shrunk);
  if (is_mirrored(limit)) parts_.ledger.give_back(kHostColumn, shrunk);
  // The next launch makes the limit grow again.
  if (limit == CU_LIMIT_STACK_SIZE) parts_.frames->forget();
  return result;
}

CUresult ContextCharges::create_green(CUgreenCtx* green, CUdevResourceDesc descriptor, CUdevice device,
                                      unsigned flags) {
  MutexLock primaries(primaries_mutex_);
  auto column = parts_.column(device);
  // A green context retains its primary context, which must exist already, because it is charged at its creation.
  auto primary = primaries_.find(device);
  if (!column || primary == primaries_.end()) return CUDA_ERROR_INVALID_CONTEXT;
  const uint64_t most = parts_.software ? 0 : kGreenContextBytes;
  CUcontext context = nullptr;
  auto make = [&] {
    CUresult result = parts_.driver.cuGreenCtxCreate(green, descriptor, device, flags);
    if (result != CUDA_SUCCESS) return result;
    result =
        parts_.driver.cuCtxFromGreenCtx ? parts_.driver.cuCtxFromGreenCtx(&context, *green) : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS) parts_.driver.cuGreenCtxDestroy(*green);
    return result;
  };
  return take(
      parts_.ledger, *column, most, make, [&] { return most; },
      [&](uint64_t bytes) {
        MutexLock lock(mutex_);
        greens_[context] = {.handle = *green, .primary = primary->second, .device = device, .bytes = bytes};
      },
      [] {});
}

CUresult ContextCharges::destroy_green(CUgreenCtx green) {
  MutexLock primaries(primaries_mutex_);
  CUdevice device = 0;
  {
    MutexLock lock(mutex_);
    auto found = std::ranges::find_if(greens_, [&](const auto& entry) { return entry.second.handle == green; });
    if (found == greens_.end()) return CUDA_ERROR_INVALID_CONTEXT;
    device = found->second.device;
  }
  CUresult result = parts_.driver.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS) return result;
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    auto found = std::ranges::find_if(greens_, [&](const auto& entry) { return entry.second.handle == green; });
    bytes = found->second.bytes;
    greens_.erase(found);
  }
  give_back(device, bytes);
  return ended(device, CUDA_SUCCESS);
}

CUcontext ContextCharges::owner(CUcontext context) const {
  MutexLock lock(mutex_);
  auto found = greens_.find(context);
  return found == greens_.end() ? context : found->second.primary;
}

CUresult ContextCharges::reserve_frames(uint64_t bytes_per_thread) {
  Place place;
  if (CUresult error = parts_.here(place)) return error;
  MutexLock lock(limits_mutex_);
  Limit* known = limit_of(place.context, place.device, CU_LIMIT_STACK_SIZE);
  if (!known) return CUDA_SUCCESS;
  uint64_t wanted = limit_bytes(place.device, CU_LIMIT_STACK_SIZE, bytes_per_thread);
  wanted -= std::min(wanted, known->fresh);
  if (wanted <= known->charged) return CUDA_SUCCESS;
  const uint64_t more = wanted - known->charged;
  // The launch takes the memory, so there is no call to make here.
  return take(
      parts_.ledger, place.column, more, [] { return CUDA_SUCCESS; }, [&] { return more; },
      [&](uint64_t) { known->charged = wanted; }, [] {});
}

namespace {

CUresult primary_ctx_retain(CUcontext* context, CUdevice device) {
  return ledger_parts().contexts->retain_primary(context, device);
}
CUresult primary_ctx_release(CUdevice device) { return ledger_parts().contexts->release_primary(device); }
CUresult primary_ctx_reset(CUdevice device) { return ledger_parts().contexts->reset_primary(device); }

CUresult ctx_create_v2(CUcontext* context, unsigned flags, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  return parts.contexts->create(context, device, [&] { return parts.driver.cuCtxCreate_v2(context, flags, device); });
}
CUresult ctx_create_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  return parts.contexts->create(context, device,
                                [&] { return parts.driver.cuCtxCreate_v3(context, affinity, count, flags, device); });
}
CUresult ctx_create_v4(CUcontext* context, CUctxCreateParams* params, unsigned flags, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  return parts.contexts->create(context, device,
                                [&] { return parts.driver.cuCtxCreate_v4(context, params, flags, device); });
}
CUresult green_ctx_create(CUgreenCtx* green, CUdevResourceDesc descriptor, CUdevice device, unsigned flags) {
  return ledger_parts().contexts->create_green(green, descriptor, device, flags);
}
CUresult green_ctx_destroy(CUgreenCtx green) { return ledger_parts().contexts->destroy_green(green); }
CUresult ctx_destroy(CUcontext context) { return ledger_parts().contexts->destroy(context); }
CUresult ctx_set_limit(CUlimit limit, size_t value) { return ledger_parts().contexts->set_limit(limit, value); }

}  // namespace

void wrap_contexts(DriverTable& table) {
  wrap(table.cuDevicePrimaryCtxRetain, &primary_ctx_retain);
  wrap(table.cuDevicePrimaryCtxRelease_v2, &primary_ctx_release);
  wrap(table.cuDevicePrimaryCtxReset_v2, &primary_ctx_reset);
  wrap(table.cuGreenCtxCreate, &green_ctx_create);
  wrap(table.cuGreenCtxDestroy, &green_ctx_destroy);
  wrap(table.cuCtxCreate_v2, &ctx_create_v2);
  wrap(table.cuCtxCreate_v3, &ctx_create_v3);
  wrap(table.cuCtxCreate_v4, &ctx_create_v4);
  wrap(table.cuCtxDestroy_v2, &ctx_destroy);
  wrap(table.cuCtxSetLimit, &ctx_set_limit);
}

}  // namespace gpuwire::server
