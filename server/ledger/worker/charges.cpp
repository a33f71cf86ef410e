#include "server/ledger/worker/charges.hpp"

#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/frame_charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"
#include "server/ledger/worker/library_charges.hpp"
#include "server/ledger/worker/pool_charges.hpp"
#include "server/ledger/worker/virtual_memory_charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kSmallUnitBytes = 512;  // inside a chunk

}  // namespace

bool ChunkBook::enter(uint32_t column, uint64_t chunk, uint64_t bytes) {
  MutexLock lock(mutex_);
  Column& of = columns_[column];
  of.bytes += bytes;
  if (++chunks_[chunk].allocations != 1) return false;
  ++of.chunks;
  return true;
}

bool ChunkBook::leave(uint32_t column, uint64_t chunk, uint64_t bytes) {
  MutexLock lock(mutex_);
  Column& of = columns_[column];
  of.bytes -= bytes;
  auto found = chunks_.find(chunk);
  if (found == chunks_.end() || --found->second.allocations != 0) return false;
  chunks_.erase(found);
  --of.chunks;
  return true;
}

bool ChunkBook::has_room(uint32_t column, uint64_t bytes) const {
  MutexLock lock(mutex_);
  auto found = columns_.find(column);
  return found != columns_.end() && found->second.chunks * kChunkBytes >= found->second.bytes + bytes;
}

void HeldBook::put(uint64_t key, Held held) {
  MutexLock lock(mutex_);
  auto [place, fresh] = held_.try_emplace(key, held);
  if (fresh) return;
  // The driver uses no address or handle twice at a time, so the former entry has ended without a report.
  freed(place->second);
  place->second = held;
}

std::optional<Held> HeldBook::take(uint64_t key) {
  MutexLock lock(mutex_);
  auto found = held_.find(key);
  if (found == held_.end()) return std::nullopt;
  Held held = found->second;
  held_.erase(found);
  return held;
}

void HeldBook::freed(const Held& held) {
  if (held.left) return;
  if (!held.chunk) ledger_.give_back(held.column, held.bytes);
  else if (chunks_->leave(held.column, held.chunk, held.bytes)) ledger_.give_back(held.column, ChunkBook::kChunkBytes);
}

void HeldBook::leave(uint64_t key) {
  MutexLock lock(mutex_);
  auto found = held_.find(key);
  if (found == held_.end() || found->second.left) return;
  found->second.left = true;
  ledger_.share(found->second.column, found->second.chunk ? ChunkBook::kChunkBytes : found->second.bytes);
}

void HeldBook::drop(CUcontext context) {
  MutexLock lock(mutex_);
  std::erase_if(held_, [&](const auto& entry) {
    if (entry.second.context != context) return false;
    freed(entry.second);
    return true;
  });
}

LedgerParts::LedgerParts(const DriverTable& driver, SessionLedger& ledger, std::vector<uint32_t> columns, bool software)
    : driver(driver),
      ledger(ledger),
      columns(std::move(columns)),
      software(software),
      memory(ledger, &chunks),
      host(ledger),
      arrays(ledger),
      modules(ledger),
      streams(ledger),
      module_code(ledger),
      pools(std::make_unique<PoolCharges>(*this)),
      virtual_memory(std::make_unique<VirtualMemoryCharges>(ledger)),
      contexts(std::make_unique<ContextCharges>(*this)),
      graphs(std::make_unique<GraphCharges>(*this)),
      frames(std::make_unique<FrameCharges>(*this)),
      libraries(std::make_unique<LibraryCharges>(*this)) {}

LedgerParts::~LedgerParts() = default;

std::optional<uint32_t> LedgerParts::column(CUdevice device) const {
  if (device < 0 || size_t(device) >= columns.size()) return std::nullopt;
  return columns[size_t(device)];
}

std::optional<uint32_t> LedgerParts::column(const CUmemLocation& location) const {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? column(location.id) : kHostColumn;
}

CUresult LedgerParts::here(Place& place) const {
  if (!driver.cuCtxGetCurrent || !driver.cuCtxGetDevice) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = driver.cuCtxGetCurrent(&place.context)) return error;
  place.context = contexts->owner(place.context);
  if (CUresult error = driver.cuCtxGetDevice(&place.device)) return error;
  std::optional<uint32_t> found = column(place.device);
  if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
  place.column = *found;
  return CUDA_SUCCESS;
}

uint64_t LedgerParts::taken(uint64_t bytes) const {
  if (software) return bytes;
  return round_up(bytes, bytes <= ChunkBook::kSmallBytesMax ? kSmallUnitBytes : ChunkBook::kChunkBytes);
}

}  // namespace gpuwire::server
