// The process's access rights to its memory, and accesses that ignore them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace gpuwire::client {

enum class Use : uint8_t { reading, writing };

// Returns whether the process may write to all of [address, address + bytes). True if the system cannot answer.
bool may_be_written(uint64_t address, uint64_t bytes) noexcept;

// Returns whether an ordinary access can read, or write, all of the range now, and faults its pages in. If the system
// cannot answer (before Linux 5.14): whether the range is mapped.
bool is_usable(uint64_t address, uint64_t bytes, Use use) noexcept;

// Accesses memory like the device, which ignores the present rights of a mapping. Returns false, possibly after a part,
// if the memory is unmapped, is behind the end of its file, or is a shared mapping without write access.
bool read_without_rights(uint64_t address, std::span<std::byte> out) noexcept;

// Writes the bytes of `bytes` whose bits are set in the mask (bit i % 8 of byte i / 8), and no others: the program may
// be writing to their neighbours. Clears the bits of the written bytes, up to the first failure.
bool write_without_rights(uint64_t address, std::span<const std::byte> bytes, std::span<uint8_t> mask) noexcept;

// The two queries of the system, for tests. `mappings` is an open /proc/self/maps, at its beginning.
// Asks about each mapping of the range, independent of the number of all mappings. Nothing: the system is older than
// Linux 6.11.
std::optional<bool> allowed_by_query(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept;
// Reads the list of the process's mappings, up to the end of the range.
bool allowed_by_list(int mappings, uint64_t address, uint64_t bytes, Use use) noexcept;

}  // namespace gpuwire::client
