// Stream-ordered memory and its pools.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"
#include "server/ledger/worker/pool_charges.hpp"

namespace gpuwire::server {
namespace {

// Whether the stream captures: then the call becomes a node of a graph.
bool capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  auto ask = ledger_parts().driver.cuStreamIsCapturing;
  return ask && ask(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

template <class Allocate>
CUresult allocate(CUmemoryPool pool, uint64_t bytes, CUdeviceptr* address, CUstream stream, Allocate&& allocate) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (!capturing(stream)) return parts.pools->allocate(pool, bytes, address, stream, allocate);
  if (CUresult error = parts.here(place)) return error;
  return parts.graphs->within({{place.device, parts.software ? bytes : 0}}, allocate);
}

CUresult mem_alloc_from_pool_async(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  return allocate(pool, bytes, address, stream,
                  [&] { return parts.driver.cuMemAllocFromPoolAsync(address, bytes, pool, stream); });
}

// Allocates from the current pool of the stream's device.
CUresult mem_alloc_async(CUdeviceptr* address, size_t bytes, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  CUmemoryPool pool = nullptr;
  if (CUresult error = parts.driver.cuDeviceGetMemPool(&pool, place.device)) return error;
  return allocate(pool, bytes, address, stream, [&] { return parts.driver.cuMemAllocAsync(address, bytes, stream); });
}

CUresult mem_free_async(CUdeviceptr address, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemFreeAsync(address, stream);
  parts.pools->memory_was_freed();
  return result;
}

CUresult mem_pool_create(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemPoolCreate(pool, properties);
  if (result != CUDA_SUCCESS) return result;
  if (auto column = parts.column(properties->location)) {
    parts.pools->located(*pool, *column);
    return result;
  }
  parts.driver.cuMemPoolDestroy(*pool);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult mem_get_default_mem_pool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemGetDefaultMemPool(pool, location, type);
  if (result != CUDA_SUCCESS) return result;
  if (auto column = parts.column(*location)) parts.pools->located(*pool, *column);
  return result;
}

CUresult mem_pool_destroy(CUmemoryPool pool) { return ledger_parts().pools->destroy(pool); }

CUresult mem_pool_trim_to(CUmemoryPool pool, size_t keep_bytes) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemPoolTrimTo(pool, keep_bytes);
  parts.pools->settle(pool);
  return result;
}

CUresult mem_pool_export(void* handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemPoolExportToShareableHandle(handle, pool, type, flags);
  if (result == CUDA_SUCCESS) parts.pools->exported(pool);
  return result;
}

CUresult mem_pool_import(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type, unsigned long long flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuMemPoolImportFromShareableHandle(pool, handle, type, flags);
  if (result == CUDA_SUCCESS) parts.pools->imported(*pool);
  return result;
}

// --- calls that find work done -------------------------------------------------------------------------------------

CUresult stream_query(CUstream stream) {
  return ledger_parts().pools->synchronised(ledger_parts().driver.cuStreamQuery(stream));
}
CUresult stream_synchronize(CUstream stream) {
  return ledger_parts().pools->synchronised(ledger_parts().driver.cuStreamSynchronize(stream));
}
CUresult event_query(CUevent event) {
  return ledger_parts().pools->synchronised(ledger_parts().driver.cuEventQuery(event));
}
CUresult event_synchronize(CUevent event) {
  return ledger_parts().pools->synchronised(ledger_parts().driver.cuEventSynchronize(event));
}
CUresult ctx_synchronize() { return ledger_parts().pools->synchronised(ledger_parts().driver.cuCtxSynchronize()); }

}  // namespace

void wrap_pools(DriverTable& table) {
  wrap(table.cuMemAllocAsync, &mem_alloc_async);
  wrap(table.cuMemAllocFromPoolAsync, &mem_alloc_from_pool_async);
  wrap(table.cuMemFreeAsync, &mem_free_async);
  wrap(table.cuMemPoolCreate, &mem_pool_create);
  wrap(table.cuMemPoolDestroy, &mem_pool_destroy);
  wrap(table.cuMemPoolTrimTo, &mem_pool_trim_to);
  wrap(table.cuMemGetDefaultMemPool, &mem_get_default_mem_pool);
  wrap(table.cuMemPoolExportToShareableHandle, &mem_pool_export);
  wrap(table.cuMemPoolImportFromShareableHandle, &mem_pool_import);
  wrap(table.cuStreamQuery, &stream_query);
  wrap(table.cuStreamSynchronize, &stream_synchronize);
  wrap(table.cuEventQuery, &event_query);
  wrap(table.cuEventSynchronize, &event_synchronize);
  wrap(table.cuCtxSynchronize, &ctx_synchronize);
}

}  // namespace gpuwire::server
