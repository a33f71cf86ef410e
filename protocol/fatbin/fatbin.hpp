// Reads the containers in which nvcc stores device code. One fat binary contains PTX and cubins for several
// architectures.
//
// The layout was found by experiment with nvcc and fatbinary of CUDA 13.0. All functions accept hostile bytes: lengths
// and offsets are checked before use, and decompressed sizes are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::fatbin {

inline constexpr uint32_t kWrapperMagic = 0x466243B1;
inline constexpr uint32_t kContainerMagic = 0xBA55ED50;
inline constexpr size_t kContainerHeaderBytes = 16;
// A payload with a larger decompressed size is refused. The limit is far above nvcc's output and below a harmful size.
inline constexpr uint64_t kDecompressedBytesMax = uint64_t{1} << 30;
inline constexpr size_t kEntriesMax = 4096;

struct Error {
  std::string message;
};
inline tl::unexpected<Error> fail(std::string message) { return tl::unexpected(Error{std::move(message)}); }

enum class Kind : uint8_t { ptx, cubin, other };
enum class Compression : uint8_t { none, lz4, zstd };

struct Entry {
  Kind kind = Kind::other;
  // 75 for compute capability 7.5.
  uint32_t sm = 0;
  // sm_90a: runs on exactly that compute capability.
  bool architecture_specific = false;
  // sm_100f: runs on its family only.
  bool family_specific = false;
  // Compiled with -rdc=true, to be linked with others.
  bool relocatable = false;
  bool debug = false;
  Compression compression = Compression::none;
  // The size of a compressed payload after decompression.
  uint64_t decompressed_bytes = 0;
  // The stored payload, without padding if its size is known. Points into the container.
  std::span<const uint8_t> payload;
  // Header, payload and padding. Behind a container header of its own, this is a fat binary again.
  std::span<const uint8_t> whole;
  // Compiler options recorded with the entry.
  std::string options;
};

// The compute capability of a device: 7.5 is {7, 5}.
struct ComputeCapability {
  uint32_t major = 0;
  uint32_t minor = 0;
};

// Returns the entries of a container (without the wrapper). Bytes behind the size in its header are ignored.
tl::expected<std::vector<Entry>, Error> read_container(std::span<const uint8_t> container);

// Returns the entries of bytes that contain only entries, like those behind a container's header.
tl::expected<std::vector<Entry>, Error> read_entries(std::span<const uint8_t> entries);

// Returns the entry's contents. PTX is returned without the terminating zeros.
tl::expected<std::vector<uint8_t>, Error> decompress(const Entry& entry);

// Returns the entry that a driver would choose for the device: the newest cubin that runs on it, or else the newest PTX
// that can be compiled for it. Returns null if there is none. ptx_only: ignores cubins.
const Entry* select_entry(std::span<const Entry> entries, ComputeCapability device, bool ptx_only = false);

}  // namespace gpuwire::fatbin
