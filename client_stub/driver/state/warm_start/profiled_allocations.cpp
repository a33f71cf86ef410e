#include "client_stub/driver/state/warm_start/profiled_allocations.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "client_stub/driver/process/read_number.hpp"

namespace gpuwire::client {
namespace {

// Parses "DEVICE BYTES NUMBER".
std::optional<std::array<uint64_t, 3>> numbers_of(std::string_view line) {
  std::array<uint64_t, 3> out{};
  for (uint64_t& number : out) {
    if (&number != &out.front()) {
      if (!line.starts_with(' ')) return std::nullopt;
      line.remove_prefix(1);
    }
    if (!read_number(line, number)) return std::nullopt;
  }
  return line.empty() ? std::optional(out) : std::nullopt;
}

}  // namespace

std::string ProfiledAllocations::line_of(const Block& block) {
  return std::to_string(block.size.first) + ' ' + std::to_string(block.size.second) + ' ' +
         std::to_string(block.number);
}

ProfiledAllocations::ProfiledAllocations(std::shared_ptr<WarmStart> program) : program_(std::move(program)) {
  for (const std::string& line : program_->lines(WarmStartSection::memory)) {
    const auto numbers = numbers_of(line);
    if (!numbers || (*numbers)[0] >= kProfiledDevicesMax || (*numbers)[2] == 0 ||
        (*numbers)[2] > wire::kProfiledBlocksMax)
      continue;
    add({{int((*numbers)[0]), (*numbers)[1]}, uint32_t((*numbers)[2])});
  }
  earlier_ = blocks_.size();
}

bool ProfiledAllocations::add(const Block& block) {
  size_t count = 0;
  uint64_t bytes = 0;
  for (const Block& known : blocks_) {
    if (known.size == block.size && known.number == block.number) return false;
    if (known.size.first != block.size.first) continue;
    ++count;
    bytes += known.size.second;
  }
  if (block.size.second == 0 || count == wire::kProfiledBlocksMax ||
      block.size.second > wire::kProfiledBytesMax - bytes)
    return false;
  blocks_.push_back(block);
  return true;
}

bool ProfiledAllocations::is_used(const Block& block) const {
  const auto found = used_.find(block.size);
  return found != used_.end() && block.number <= found->second;
}

bool ProfiledAllocations::uses_device(int device) const {
  return std::any_of(used_.begin(), used_.end(), [&](const auto& used) { return used.first.first == device; });
}

std::vector<uint64_t> ProfiledAllocations::awaited(int device) const {
  std::vector<uint64_t> out;
  for (const Block& block : blocks_) {
    if (block.size.first == device && !is_used(block)) out.push_back(block.size.second);
  }
  return out;
}

void ProfiledAllocations::used(int device, uint64_t bytes) {
  const Size size{device, bytes};
  if (used_.size() == kProfiledSizesMax && !used_.contains(size)) return;
  const Block block{size, ++used_[size]};
  if (program_->kept() && add(block)) program_->add(WarmStartSection::memory, line_of(block), false);
}

bool ProfiledAllocations::mostly_unused() const {
  size_t blocks = 0, used_blocks = 0;
  uint64_t bytes = 0, used_bytes = 0;
  for (size_t i = 0; i < earlier_; ++i) {
    const Block& block = blocks_[i];
    if (!uses_device(block.size.first)) continue;
    const bool used = is_used(block);
    ++blocks;
    used_blocks += used;
    bytes += block.size.second;
    used_bytes += used ? block.size.second : 0;
  }
  return 2 * used_blocks < blocks || 2 * used_bytes < bytes;
}

void ProfiledAllocations::forget_unused() {
  std::vector<std::string> lines;
  for (const Block& block : blocks_) {
    if (is_used(block) || !uses_device(block.size.first)) lines.push_back(line_of(block));
  }
  program_->replace(WarmStartSection::memory, lines);
}

}  // namespace gpuwire::client
