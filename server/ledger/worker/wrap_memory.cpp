// Plain, pitched and managed memory of a device, and pinned memory of the server.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/pool_charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kPitchUnitBytes = 512;  // cuMemAllocPitch aligns rows to no more on any device so far

// Charges the memory under `key`, which `call` sets, until `free` frees it.
template <class Call, class Taken, class Free>
CUresult charged(HeldBook& registry, uint32_t column, CUcontext context, uint64_t most, Call&& call, Taken&& taken,
                 Free&& free) {
  uint64_t key = 0;
  return take(
      ledger_parts().ledger, column, most, [&] { return call(key); }, taken,
      [&](uint64_t bytes) { registry.put(key, {.column = column, .bytes = bytes, .context = context}); },
      [&] { free(key); });
}

void free_device(uint64_t key) { ledger_parts().driver.cuMemFree_v2(key); }

// Charges a small allocation: reserves the chunk that it may open, and releases it if none is opened. Without room for
// a chunk the allocation may still fit into an existing one; if that one is fragmented, the driver opens a new chunk
// nevertheless, and the allocation is undone.
template <class Call>
CUresult charged_in_chunk(const Place& place, uint64_t bytes, Call&& call) {
  LedgerParts& parts = ledger_parts();
  Held held{.column = place.column, .bytes = bytes, .context = place.context};
  uint64_t key = 0;
  bool called = false;
  auto within = [&](uint64_t most) {
    return take(
        parts.ledger, place.column, most, [&] { return called = true, call(key); },
        [&] {
          held.chunk = ChunkBook::chunk_of(key);
          return parts.chunks.enter(place.column, held.chunk, bytes) ? ChunkBook::kChunkBytes : uint64_t{0};
        },
        [&](uint64_t) { parts.memory.put(key, held); },
        [&] {
          parts.chunks.leave(place.column, held.chunk, bytes);
          free_device(key);
        });
  };
  CUresult result = within(ChunkBook::kChunkBytes);
  return called || !parts.chunks.has_room(place.column, bytes) ? result : within(0);
}

bool is_small(uint64_t bytes) { return !ledger_parts().software && bytes != 0 && bytes <= ChunkBook::kSmallBytesMax; }

template <class Call>
CUresult charged_here(uint64_t bytes, Call&& call) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  return charged(
      parts.memory, place.column, place.context, bytes, std::forward<Call>(call), [&] { return bytes; }, free_device);
}

CUresult mem_alloc(CUdeviceptr* address, size_t bytes) {
  LedgerParts& parts = ledger_parts();
  auto call = [&](uint64_t& key) {
    CUresult result = parts.driver.cuMemAlloc_v2(address, bytes);
    if (result == CUDA_SUCCESS) key = *address;
    return result;
  };
  if (!is_small(bytes)) return charged_here(parts.taken(bytes), call);
  Place place;
  if (CUresult error = parts.here(place)) return error;
  return charged_in_chunk(place, parts.taken(bytes), call);
}

CUresult mem_alloc_pitch(CUdeviceptr* address, size_t* pitch, size_t width_bytes, size_t height,
                         unsigned element_bytes) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  uint64_t most = parts.taken(product(round_up(width_bytes, kPitchUnitBytes), height));
  auto call = [&](uint64_t& key) {
    CUresult result = parts.driver.cuMemAllocPitch_v2(address, pitch, width_bytes, height, element_bytes);
    if (result == CUDA_SUCCESS) key = *address;
    return result;
  };
  if (is_small(most)) return charged_in_chunk(place, most, call);
  return charged(
      parts.memory, place.column, place.context, most, call, [&] { return parts.taken(product(*pitch, height)); },
      free_device);
}

// Whether nothing but the device itself bounds the session's memory there. A quota bounds managed memory, too: its
// pages would otherwise take all of a device that has room.
bool bounded_by_device_alone(const Place& place) {
  LedgerParts& parts = ledger_parts();
  size_t total = 0;
  return parts.driver.cuDeviceTotalMem_v2(&total, place.device) == CUDA_SUCCESS &&
         parts.ledger.limit(place.column) >= total;
}

// Managed memory is charged in full to the device, because page faults move its pages between host and device. It may
// be larger than the rest of the device (section "Unified Memory Programming" of the CUDA C++ Programming Guide), and
// is then charged to the server's host memory: the driver evicts managed pages when other memory needs the device, so
// such pages take nothing from anybody, and the program's further allocations and kernels still find the rest of the
// device.
CUresult mem_alloc_managed(CUdeviceptr* address, size_t bytes, unsigned flags) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  const uint64_t most = parts.taken(bytes);
  bool called = false;
  auto charged_to = [&](uint32_t column) {
    auto call = [&](uint64_t& key) {
      called = true;
      CUresult result = parts.driver.cuMemAllocManaged(address, bytes, flags);
      if (result == CUDA_SUCCESS) key = *address;
      return result;
    };
    return charged(
        parts.memory, column, place.context, most, call, [&] { return most; }, free_device);
  };
  const CUresult result = charged_to(place.column);
  const bool no_room = result == CUDA_ERROR_OUT_OF_MEMORY && !called;
  return no_room && bounded_by_device_alone(place) ? charged_to(kHostColumn) : result;
}

// cuMemFree may also free memory of a pool.
CUresult mem_free(CUdeviceptr address) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.memory.free(address, [&] { return parts.driver.cuMemFree_v2(address); });
  parts.pools->memory_was_freed();
  return result;
}

// Other processes may open the handle, and the memory then lives as long as one of them.
CUresult ipc_get_mem_handle(CUipcMemHandle* handle, CUdeviceptr address) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuIpcGetMemHandle(handle, address);
  CUdeviceptr base = address;
  if (result == CUDA_SUCCESS && parts.driver.cuMemGetAddressRange_v2)
    parts.driver.cuMemGetAddressRange_v2(&base, nullptr, address);
  if (result == CUDA_SUCCESS) parts.memory.leave(base);
  return result;
}

CUresult ipc_open_mem_handle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuIpcOpenMemHandle_v2(address, handle, flags);
  if (result == CUDA_SUCCESS) parts.ledger.note_import();
  return result;
}

// --- pinned memory -------------------------------------------------------------------------------------------------

template <class Call>
CUresult charged_host(uint64_t bytes, Call&& call) {
  LedgerParts& parts = ledger_parts();
  CUcontext context = nullptr;
  if (CUresult error = parts.driver.cuCtxGetCurrent(&context)) return error;
  // Pinned memory is never more than requested.
  return charged(
      parts.host, kHostColumn, context, bytes, std::forward<Call>(call), [&] { return bytes; }, [](uint64_t) {});
}

CUresult mem_host_alloc(void** memory, size_t bytes, unsigned flags) {
  return charged_host(bytes, [&](uint64_t& key) {
    CUresult result = ledger_parts().driver.cuMemHostAlloc(memory, bytes, flags);
    if (result == CUDA_SUCCESS) key = reinterpret_cast<uint64_t>(*memory);
    return result;
  });
}

CUresult mem_alloc_host(void** memory, size_t bytes) {
  return charged_host(bytes, [&](uint64_t& key) {
    CUresult result = ledger_parts().driver.cuMemAllocHost_v2(memory, bytes);
    if (result == CUDA_SUCCESS) key = reinterpret_cast<uint64_t>(*memory);
    return result;
  });
}

CUresult mem_free_host(void* memory) {
  LedgerParts& parts = ledger_parts();
  return parts.host.free(reinterpret_cast<uint64_t>(memory), [&] { return parts.driver.cuMemFreeHost(memory); });
}

CUresult mem_host_register(void* memory, size_t bytes, unsigned flags) {
  return charged_host(bytes, [&](uint64_t& key) {
    key = reinterpret_cast<uint64_t>(memory);
    return ledger_parts().driver.cuMemHostRegister_v2(memory, bytes, flags);
  });
}

CUresult mem_host_unregister(void* memory) {
  LedgerParts& parts = ledger_parts();
  return parts.host.free(reinterpret_cast<uint64_t>(memory), [&] { return parts.driver.cuMemHostUnregister(memory); });
}

}  // namespace

void wrap_memory(DriverTable& table) {
  wrap(table.cuMemAlloc_v2, &mem_alloc);
  wrap(table.cuMemAllocPitch_v2, &mem_alloc_pitch);
  wrap(table.cuMemAllocManaged, &mem_alloc_managed);
  wrap(table.cuMemFree_v2, &mem_free);
  wrap(table.cuIpcGetMemHandle, &ipc_get_mem_handle);
  wrap(table.cuIpcOpenMemHandle_v2, &ipc_open_mem_handle);
}

void wrap_host_memory(DriverTable& table) {
  wrap(table.cuMemHostAlloc, &mem_host_alloc);
  wrap(table.cuMemAllocHost_v2, &mem_alloc_host);
  wrap(table.cuMemFreeHost, &mem_free_host);
  wrap(table.cuMemHostRegister_v2, &mem_host_register);
  wrap(table.cuMemHostUnregister, &mem_host_unregister);
}

}  // namespace gpuwire::server
