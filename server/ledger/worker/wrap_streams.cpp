// Streams: each takes memory of the device for its hardware state. The driver keeps that memory when a stream is
// destroyed, for the next stream of its context.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kStreamBytes = 560u << 10;  // 108 MiB for 200 of them on an H200

template <class Create>
CUresult charged(CUstream* stream, Create&& create) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  if (parts.software) return create();
  if (parts.contexts->take_spare_stream(place.context)) {
    CUresult result = create();
    if (result != CUDA_SUCCESS) parts.contexts->keep_spare_stream(place.context);
    else
      parts.streams.put(reinterpret_cast<uint64_t>(*stream),
                        {.column = place.column, .bytes = kStreamBytes, .context = place.context});
    return result;
  }
  // The driver offers no other figure, so the bound stays charged.
  return take(
      parts.ledger, place.column, kStreamBytes, create, [] { return kStreamBytes; },
      [&](uint64_t bytes) {
        parts.streams.put(reinterpret_cast<uint64_t>(*stream),
                          {.column = place.column, .bytes = bytes, .context = place.context});
      },
      [] {});
}

CUresult stream_create(CUstream* stream, unsigned flags) {
  return charged(stream, [&] { return ledger_parts().driver.cuStreamCreate(stream, flags); });
}
CUresult stream_create_with_priority(CUstream* stream, unsigned flags, int priority) {
  return charged(stream, [&] { return ledger_parts().driver.cuStreamCreateWithPriority(stream, flags, priority); });
}
CUresult green_ctx_stream_create(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  return charged(stream,
                 [&] { return ledger_parts().driver.cuGreenCtxStreamCreate(stream, context, flags, priority); });
}
CUresult stream_destroy(CUstream stream) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuStreamDestroy_v2(stream);
  if (result != CUDA_SUCCESS) return result;
  if (auto held = parts.streams.take(reinterpret_cast<uint64_t>(stream)))
    parts.contexts->keep_spare_stream(held->context);
  return result;
}

}  // namespace

bool ContextCharges::take_spare_stream(CUcontext context) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  if (found == contexts_.end() || found->second.spare_streams == 0) return false;
  --found->second.spare_streams;
  found->second.bytes -= kStreamBytes;
  return true;
}

void ContextCharges::keep_spare_stream(CUcontext context) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  ++found->second.spare_streams;
  found->second.bytes += kStreamBytes;
}

void wrap_streams(DriverTable& table) {
  wrap(table.cuStreamCreate, &stream_create);
  wrap(table.cuStreamCreateWithPriority, &stream_create_with_priority);
  wrap(table.cuGreenCtxStreamCreate, &green_ctx_stream_create);
  wrap(table.cuStreamDestroy_v2, &stream_destroy);
}

}  // namespace gpuwire::server
