// Reads the containers in which nvcc puts device code: one fat binary holds PTX and cubins for several architectures.
//
// The layout was found by experiment with CUDA 13.0's nvcc and fatbinary. Everything here takes bytes that nobody
// vouches for: lengths and offsets are checked before use, and decompressed sizes are bounded.
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
// A payload that claims a larger decompressed size is refused: the limit is far above the output of nvcc and below a
// harmful size.
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
  uint32_t sm = 0;                     // 75 for compute capability 7.5
  bool architecture_specific = false;  // sm_90a: runs on exactly that compute capability
  bool family_specific = false;        // sm_100f: runs on its family only
  bool relocatable = false;            // compiled with -rdc=true: to be linked with others
  bool debug = false;
  Compression compression = Compression::none;
  uint64_t decompressed_bytes = 0;   // of the payload when it is compressed
  std::span<const uint8_t> payload;  // as stored, without padding when its size is known; points into the container
  std::span<const uint8_t>
      whole;            // header, payload and padding: behind a container header of its own it is a fat binary again
  std::string options;  // compiler options recorded with the entry
};

// Which code a device can run: compute capability 7.5 is {7, 5}.
struct ComputeCapability {
  uint32_t major = 0;
  uint32_t minor = 0;
};

// Lists the entries of a container (without the wrapper). Bytes behind the size that its header names are ignored.
tl::expected<std::vector<Entry>, Error> read_container(std::span<const uint8_t> container);

// The entries of bytes that are nothing else, as behind a container's header.
tl::expected<std::vector<Entry>, Error> read_entries(std::span<const uint8_t> entries);

// The entry's contents. PTX comes without the terminating zeros.
tl::expected<std::vector<uint8_t>, Error> decompress(const Entry& entry);

// The entry that a driver would choose for that device: the newest cubin that runs on it, or else the newest PTX that
// may be compiled for it. Null when there is none. With ptx_only cubins are skipped.
const Entry* select_entry(std::span<const Entry> entries, ComputeCapability device, bool ptx_only = false);

}  // namespace gpuwire::fatbin
