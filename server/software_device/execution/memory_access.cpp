#include "server/software_device/execution/memory_access.hpp"

#include <cstdio>

#include "server/software_device/execution/handlers.hpp"

namespace gpuwire::software_device {
namespace {

constexpr size_t kStringBytesMax = 1 << 20;

const char* name_of(ptx::Space space) {
  switch (space) {
    case ptx::Space::generic: return "generic";
    case ptx::Space::global: return "global";
    case ptx::Space::shared: return "shared";
    case ptx::Space::local: return "local";
    case ptx::Space::constant: return "constant";
    default: return "parameter";
  }
}

uint8_t* refuse(Warp& w, const Op& op, unsigned lane, ptx::Space space, uint64_t address, uint32_t bytes,
                AccessKind kind, Fault fault, const char* why) {
  char text[128];
  std::snprintf(text, sizeof text, "%s: %s %s of %u bytes at 0x%llx", why, name_of(space),
                kind == AccessKind::load    ? "load"
                : kind == AccessKind::store ? "store"
                                            : "atomic",
                bytes, static_cast<unsigned long long>(address));
  w.fault(fault, lane, op, text);
  return nullptr;
}

}  // namespace

uint8_t* resolve_lane(Warp& w, const Op& op, unsigned lane, ptx::Space space, uint64_t address, uint32_t bytes,
                      AccessKind kind) {
  if ((address & (bytes - 1)) != 0)
    return refuse(w, op, lane, space, address, bytes, kind, Fault::misaligned_address, "misaligned address");
  uint64_t offset = address;
  ptx::Space real = space;
  if (space == ptx::Space::generic) {
    uint64_t window = address & kWindowMask;
    real = window == kSharedWindow      ? ptx::Space::shared
           : window == kLocalWindow     ? ptx::Space::local
           : window == kParameterWindow ? ptx::Space::param
                                        : ptx::Space::global;
    if (real != ptx::Space::global) offset = address & ~kWindowMask;
  }
  uint8_t* found = nullptr;
  switch (real) {
    case ptx::Space::shared:
      if (offset < w.shared_bytes_ && bytes <= w.shared_bytes_ - offset) {
        found = w.shared_ + offset;
      } else if (const uint64_t number = offset >> kClusterRankShift;
                 number != 0 && number <= w.block_->cluster().size()) {
        found = w.block_->cluster().shared_at(static_cast<uint32_t>(number - 1),
                                              offset & ((uint64_t{1} << kClusterRankShift) - 1), bytes);
      }
      break;
    case ptx::Space::local:
      if (offset < w.local_bytes_ && bytes <= w.local_bytes_ - offset)
        found = w.local_memory() + lane * w.local_bytes_ + offset;
      break;
    case ptx::Space::param: {
      std::span<const uint8_t> parameters = w.launch_->parameters();
      if (kind == AccessKind::load && offset < parameters.size() && bytes <= parameters.size() - offset)
        found = const_cast<uint8_t*>(parameters.data()) + offset;
      break;
    }
    default:
      if (w.executor_->find(address, bytes, kind != AccessKind::load, range_slot(op)))
        found = reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(address));
      break;
  }
  if (found == nullptr)
    return refuse(w, op, lane, space, address, bytes, kind, Fault::illegal_address, "illegal address");
  return found;
}

bool read_string(Warp& w, const Op& op, unsigned lane, uint64_t address, std::string& text) {
  while (text.size() < kStringBytesMax) {
    uint8_t* byte = resolve_lane(w, op, lane, ptx::Space::generic, address + text.size(), 1, AccessKind::load);
    if (byte == nullptr) return false;
    if (*byte == 0) return true;
    text.push_back(static_cast<char>(*byte));
  }
  return true;
}

ptx::Space space_of(const ptx::Instruction& i) {
  using ptx::Modifier;
  if (i.has(Modifier::global)) return ptx::Space::global;
  if (i.has(Modifier::shared)) return ptx::Space::shared;
  if (i.has(Modifier::local)) return ptx::Space::local;
  if (i.has(Modifier::const_)) return ptx::Space::constant;
  if (i.has(Modifier::param)) return ptx::Space::param;
  return ptx::Space::generic;
}

bool lower_address(Lowering& l, const ptx::Operand& operand, ptx::Space space, LoweredAddress& result) {
  Lowering::Address address;
  if (!l.address(operand, address)) return false;
  if (address.parameter) return l.invalid("a .param variable is accessed without .param");
  result.offset = static_cast<uint64_t>(address.offset);
  result.base = address.base;
  result.narrow = address.base_bytes == 4;
  if (address.base_bytes != 4 && address.base_bytes != 8)
    return l.invalid("an address needs a register of 4 or 8 bytes");
  bool windowed = space == ptx::Space::shared || space == ptx::Space::local;
  if (!result.narrow || windowed) return true;
  result.narrow = false;
  result.base = l.temporary(8);
  l.emit(resize_handler(4, 8, false), {result.base}, {address.base});
  return true;
}

}  // namespace gpuwire::software_device
