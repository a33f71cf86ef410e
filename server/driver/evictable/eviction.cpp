#include "server/driver/evictable/eviction.hpp"

#include <fmt/format.h>

#include "server/driver/library/driver_library.hpp"

namespace gpuwire::server {

std::vector<ChunkCopy> Eviction::chunks_of(const EvictableMemory::Blocks& blocks) const {
  std::vector<ChunkCopy> chunks;
  uint64_t offset = 0;
  for (const auto& [begin, block] : blocks)
    for (const EvictableChunk& chunk : block.chunks) {
      chunks.push_back({block.owner, chunk.begin, copy_.data() + offset, chunk.bytes});
      offset += chunk.bytes;
    }
  return chunks;
}

EvictionOutcome Eviction::failed(EvictionResult result, const char* call, CUresult error) const {
  return {result, fmt::format("{}: {}", call, describe_result(memory_.driver(), error))};
}

EvictionOutcome Eviction::out() {
  if (is_out()) return {};
  EvictionOutcome outcome = memory_.with_blocks(
      [this](EvictableMemory::Blocks& blocks, const EvictableMemory::MapAgain& map_again) -> EvictionOutcome {
        uint64_t bytes = 0;
        for (const auto& [begin, block] : blocks) bytes += block.mapped_bytes;
        if (bytes == 0) return {};
        if (!copy_.allocate(bytes)) return {EvictionResult::refused, "the server's own memory is too small"};
        if (CUresult error = copy_chunks(memory_.driver(), chunks_of(blocks), CopyDirection::to_host, threads_max_)) {
          copy_ = HostCopy();
          return failed(EvictionResult::refused, "its memory could not be copied", error);
        }
        const BlockMapper mapper(memory_.driver());
        for (auto& [begin, block] : blocks) {
          const CUresult error = mapper.unmap(block);
          if (error == CUDA_SUCCESS) continue;
          EvictionOutcome undone = map_and_fill(blocks, map_again);
          if (undone.result != EvictionResult::done) return {EvictionResult::lost, std::move(undone.why)};
          return failed(EvictionResult::refused, "cuMemUnmap", error);
        }
        return {};
      });
  is_out_ = outcome.result == EvictionResult::done;
  return outcome;
}

// Blocks that are still mapped get their own contents again.
EvictionOutcome Eviction::map_and_fill(EvictableMemory::Blocks& blocks, const EvictableMemory::MapAgain& map_again) {
  for (auto& [begin, block] : blocks) {
    const CUresult error = map_again(block);
    if (error == CUDA_SUCCESS) continue;
    const BlockMapper mapper(memory_.driver());
    for (auto& [mapped, before] : blocks) {
      if (mapped == begin) break;
      if (mapper.unmap(before) != CUDA_SUCCESS) return failed(EvictionResult::lost, "cuMemUnmap", error);
    }
    if (error == CUDA_ERROR_OUT_OF_MEMORY) return {EvictionResult::no_room, "the device has too little free memory"};
    return failed(EvictionResult::lost, "its memory could not be mapped again", error);
  }
  if (CUresult error = copy_chunks(memory_.driver(), chunks_of(blocks), CopyDirection::to_device, threads_max_))
    return failed(EvictionResult::lost, "its memory could not be copied back", error);
  copy_ = HostCopy();
  return {};
}

EvictionOutcome Eviction::back() {
  if (!is_out()) return {};
  EvictionOutcome outcome =
      memory_.with_blocks([this](EvictableMemory::Blocks& blocks, const EvictableMemory::MapAgain& map_again) {
        return copy_.bytes() == 0 ? EvictionOutcome() : map_and_fill(blocks, map_again);
      });
  is_out_ = outcome.result == EvictionResult::no_room;
  return outcome;
}

}  // namespace gpuwire::server
