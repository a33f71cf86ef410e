// This process's access rights to its memory, as the system reports them, and accesses without them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpuwire::client {

enum class Use : uint8_t { reading, writing };

// May the process write to all of [address, address + bytes)? True where the system does not say.
bool may_be_written(uint64_t address, uint64_t bytes) noexcept;

// Can all of the range be read, or written, by an ordinary access now? Its pages are brought in. Where the system does
// not say (before Linux 5.14): is there memory at all?
bool is_usable(uint64_t address, uint64_t bytes, Use use) noexcept;

// As the device uses pinned memory, whatever rights its mapping has by now. False, and perhaps done in part: the memory
// is not there any more, is behind the end of its file, or is a shared mapping that may not be written.
bool read_without_rights(uint64_t address, std::span<std::byte> out) noexcept;

// Writes those of `bytes` whose bits are set in the mask (bit i % 8 of byte i / 8), and no other: the program may be
// writing to their neighbours. Clears the bits of the bytes that are written, up to the first that cannot be.
bool write_without_rights(uint64_t address, std::span<const std::byte> bytes, std::span<uint8_t> mask) noexcept;

// The two ways to ask, for tests. `mappings`: an open /proc/self/maps, from its beginning.
// One question for each mapping of the range, however many the process has. None: the system is older than Linux 6.11.
std::optional<bool> allowed_by_query(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept;
// Reads the list of the process's mappings, up to the end of the range.
bool allowed_by_list(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept;

}  // namespace gpuwire::client
