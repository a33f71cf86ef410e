#include "protocol/fatbin/fatbin.hpp"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <string_view>
#include <tuple>

// zstd calls tracing hooks through weak symbols if the program defines them. The program's hooks are for its own zstd,
// so this library defines its own.
extern "C" {
[[gnu::visibility("hidden")]] unsigned long long ZSTD_trace_decompress_begin(const void*) { return 0; }  // no trace
[[gnu::visibility("hidden")]] void ZSTD_trace_decompress_end(unsigned long long, const void*) {}
}

namespace gpuwire::fatbin {
namespace {

struct ContainerHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t payload_bytes;
};
static_assert(sizeof(ContainerHeader) == kContainerHeaderBytes);

struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t padded_bytes;
  uint32_t stored_bytes;    // without padding; 0 if the payload is not compressed
  uint32_t options_offset;  // offset of an OptionsHeader from the start of the entry; 0: none
  uint16_t minor, major;    // version of the PTX ISA or of the cubin format
  uint32_t sm;
  uint32_t name_offset, name_bytes;
  uint64_t flags;
  uint64_t unused;
  uint64_t decompressed_bytes;
};
static_assert(sizeof(EntryHeader) == 64);

struct OptionsHeader {
  uint32_t offset, bytes;
};

constexpr uint16_t kKindPtx = 1;
constexpr uint16_t kKindCubin = 2;
constexpr uint64_t kFlagDebug = 0x2;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchitectureSpecific = 0x100000;
constexpr uint64_t kFlagFamilySpecific = 0x200000;
// nvcc's mark of relocatable PTX: fatbinary records this option for the compiler.
constexpr std::string_view kRelocatableOption = "--compile-only";

template <typename T>
T load(std::span<const uint8_t> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Returns the options of an entry whose header is `entry`. A bad offset gives no options, and only the marks in them
// are lost.
std::string read_options(std::span<const uint8_t> entry, const EntryHeader& header) {
  if (header.options_offset == 0 || header.kind != kKindPtx || header.options_offset > entry.size() ||
      entry.size() - header.options_offset < sizeof(OptionsHeader)) {
    return {};
  }
  const auto options = load<OptionsHeader>(entry, header.options_offset);
  if (options.offset > entry.size() || options.bytes > entry.size() - options.offset) {
    return {};
  }
  std::string text(reinterpret_cast<const char*>(entry.data()) + options.offset, options.bytes);
  text.resize(std::strlen(text.c_str()));
  return text;
}

tl::expected<Entry, Error> read_entry(std::span<const uint8_t> bytes, const EntryHeader& header) {
  Entry entry;
  entry.kind = header.kind == kKindPtx ? Kind::ptx : header.kind == kKindCubin ? Kind::cubin : Kind::other;
  entry.sm = header.sm;
  entry.architecture_specific = (header.flags & kFlagArchitectureSpecific) != 0;
  entry.family_specific = (header.flags & kFlagFamilySpecific) != 0;
  entry.debug = (header.flags & kFlagDebug) != 0;
  entry.compression = (header.flags & kFlagLz4) != 0    ? Compression::lz4
                      : (header.flags & kFlagZstd) != 0 ? Compression::zstd
                                                        : Compression::none;
  entry.payload = bytes.subspan(header.header_bytes, header.padded_bytes);
  entry.whole = bytes.first(header.header_bytes + header.padded_bytes);
  entry.options = read_options(bytes.first(header.header_bytes), header);
  entry.relocatable = entry.options.find(kRelocatableOption) != std::string::npos;
  if (entry.compression == Compression::none) {
    return entry;
  }
  if (header.stored_bytes > header.padded_bytes) {
    return fail("fat binary entry: compressed size " + std::to_string(header.stored_bytes) + " exceeds its room of " +
                std::to_string(header.padded_bytes));
  }
  if (header.decompressed_bytes > kDecompressedBytesMax) {
    return fail("fat binary entry: decompressed size " + std::to_string(header.decompressed_bytes) +
                " is above the limit");
  }
  entry.payload = entry.payload.first(header.stored_bytes);
  entry.decompressed_bytes = header.decompressed_bytes;
  return entry;
}

bool runs_cubin(const Entry& entry, ComputeCapability device) {
  const uint32_t exact = device.major * 10 + device.minor;
  if (entry.architecture_specific) {
    return entry.sm == exact;
  }
  return entry.sm / 10 == device.major && entry.sm <= exact;
}

bool compiles_ptx(const Entry& entry, ComputeCapability device) {
  const uint32_t exact = device.major * 10 + device.minor;
  if (entry.architecture_specific) {
    return entry.sm == exact;
  }
  return entry.sm <= exact && (!entry.family_specific || entry.sm / 10 == device.major);
}

}  // namespace

tl::expected<std::vector<Entry>, Error> read_container(std::span<const uint8_t> container) {
  if (container.size() < sizeof(ContainerHeader)) {
    return fail("fat binary: shorter than its header");
  }
  const auto header = load<ContainerHeader>(container, 0);
  if (header.magic != kContainerMagic || header.version != 1 || header.header_bytes < sizeof header ||
      header.header_bytes > container.size()) {
    return fail("fat binary: not a container of a known version");
  }
  if (header.payload_bytes > container.size() - header.header_bytes) {
    return fail("fat binary: truncated, its header promises " + std::to_string(header.payload_bytes) + " bytes");
  }
  return read_entries(container.subspan(header.header_bytes, header.payload_bytes));
}

tl::expected<std::vector<Entry>, Error> read_entries(std::span<const uint8_t> rest) {
  std::vector<Entry> entries;
  while (!rest.empty()) {
    if (rest.size() < sizeof(EntryHeader)) {
      return fail("fat binary: truncated entry header");
    }
    const auto entry_header = load<EntryHeader>(rest, 0);
    if (entry_header.header_bytes < sizeof entry_header || entry_header.header_bytes > rest.size() ||
        entry_header.padded_bytes > rest.size() - entry_header.header_bytes) {
      return fail("fat binary: entry reaches beyond the container");
    }
    if (entries.size() == kEntriesMax) {
      return fail("fat binary: too many entries");
    }
    auto entry = read_entry(rest, entry_header);
    if (!entry) {
      return tl::unexpected(entry.error());
    }
    entries.push_back(*std::move(entry));
    rest = rest.subspan(entry_header.header_bytes + entry_header.padded_bytes);
  }
  return entries;
}

tl::expected<std::vector<uint8_t>, Error> decompress(const Entry& entry) {
  std::vector<uint8_t> out;
  switch (entry.compression) {
    case Compression::none: out.assign(entry.payload.begin(), entry.payload.end()); break;
    case Compression::lz4: {
      out.resize(entry.decompressed_bytes);
      const int written =
          LZ4_decompress_safe(reinterpret_cast<const char*>(entry.payload.data()), reinterpret_cast<char*>(out.data()),
                              static_cast<int>(entry.payload.size()), static_cast<int>(out.size()));
      if (written < 0 || static_cast<uint64_t>(written) != entry.decompressed_bytes) {
        return fail("fat binary entry: damaged LZ4 data");
      }
      break;
    }
    case Compression::zstd: {
      out.resize(entry.decompressed_bytes);
      const size_t written = ZSTD_decompress(out.data(), out.size(), entry.payload.data(), entry.payload.size());
      if (ZSTD_isError(written) != 0 || written != entry.decompressed_bytes) {
        return fail("fat binary entry: damaged zstd data");
      }
      break;
    }
  }
  if (entry.kind == Kind::ptx) {
    while (!out.empty() && out.back() == 0) {
      out.pop_back();
    }
  }
  return out;
}

const Entry* select_entry(std::span<const Entry> entries, ComputeCapability device, bool ptx_only) {
  // The greatest rank wins: a cubin before PTX, then the newer architecture, then code for exactly this device.
  using Rank = std::tuple<bool, uint32_t, bool, bool>;
  const Entry* best = nullptr;
  Rank best_rank{};
  for (const Entry& entry : entries) {
    const bool usable = entry.kind == Kind::cubin ? !ptx_only && runs_cubin(entry, device)
                                                  : entry.kind == Kind::ptx && compiles_ptx(entry, device);
    const Rank rank{entry.kind == Kind::cubin, entry.sm, entry.architecture_specific, entry.family_specific};
    if (usable && (best == nullptr || rank > best_rank)) {
      best = &entry;
      best_rank = rank;
    }
  }
  return best;
}

}  // namespace gpuwire::fatbin
