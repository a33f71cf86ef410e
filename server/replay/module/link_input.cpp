#include "server/replay/module/link_input.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "server/replay/module/compiler_memory.hpp"

namespace gpuwire::server {
namespace {

constexpr std::string_view kArchiveMagic = "!<arch>\n";
constexpr size_t kVersionOffset = 4;
constexpr uint16_t kContainerVersion = 1;

uint64_t host_bytes(uint64_t contents, bool compiled) {
  return contents * (compiled ? kCompilerHostFactor : kLoaderHostFactor);
}

bool is_compiled(CUjitInputType type, std::span<const uint8_t> input) {
  if (type == CU_JIT_INPUT_PTX || type == CU_JIT_INPUT_NVVM) return true;
  const bool archive = input.size() >= kArchiveMagic.size() &&
                       std::memcmp(input.data(), kArchiveMagic.data(), kArchiveMagic.size()) == 0;
  return !archive && fatbin::image_kind(input) == fatbin::ImageKind::text;
}

bool begins_container(std::span<const uint8_t> bytes) {
  uint16_t version = 0;
  if (!fatbin::container_bytes(bytes)) return false;
  std::memcpy(&version, bytes.data() + kVersionOffset, sizeof version);
  return version == kContainerVersion;
}

// Returns the largest entry's bytes, since the linker uses one entry of a container.
std::optional<uint64_t> container_host_bytes(std::span<const uint8_t> container) {
  auto entries = fatbin::read_container(container);
  if (!entries) return std::nullopt;
  uint64_t most = 0;
  for (const fatbin::Entry& entry : *entries)
    most = std::max(most, host_bytes(std::max<uint64_t>(entry.decompressed_bytes, entry.payload.size()),
                                     entry.kind == fatbin::Kind::ptx));
  return most;
}

}  // namespace

std::optional<uint64_t> link_input_host_bytes(CUjitInputType type, std::span<const std::byte> input) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  if (fatbin::image_kind(bytes) == fatbin::ImageKind::wrapper) return std::nullopt;
  uint64_t taken = host_bytes(bytes.size(), is_compiled(type, bytes));
  std::span<const uint8_t> rest = bytes;
  while (const void* found = ::memmem(rest.data(), rest.size(), &fatbin::kContainerMagic, sizeof(uint32_t))) {
    rest = rest.subspan(size_t(static_cast<const uint8_t*>(found) - rest.data()));
    size_t passed = sizeof fatbin::kContainerMagic;
    if (begins_container(rest)) {
      auto inside = container_host_bytes(rest);
      if (!inside) return std::nullopt;
      taken += *inside;
      passed = size_t(*fatbin::container_bytes(rest));  // that much is there: it has been read
    }
    rest = rest.subspan(passed);
  }
  return taken;
}

}  // namespace gpuwire::server
