// The programs that a user of a server may end, suspend and resume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::launcher {

// The largest number of sessions in one query.
inline constexpr size_t kSessionsAtOnce = 8;

struct OwnProgram {
  std::string server;
  uint64_t session = 0;
  // As in `gpuwire queue --json`.
  std::string name, host, state, suspension;
};

// Adds the programs that run or wait at the server: the user's own, or the tenant's if the caller is no user of it.
// The error has one line.
tl::expected<void, std::string> add_own_programs(const std::string& server, std::vector<OwnProgram>& programs);
// Returns the programs of these numbers. The error names a number that no program has, or that several have; `verb`:
// what is to happen with them.
tl::expected<std::vector<OwnProgram>, std::string> chosen_programs(const std::vector<OwnProgram>& programs,
                                                                   std::span<const uint64_t> sessions,
                                                                   std::string_view verb);
// Returns the error about a number that none of them has.
std::string no_own_program(uint64_t session, std::string_view verb);

}  // namespace gpuwire::launcher
