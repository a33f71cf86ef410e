// Who prints the accounts of `--stats` when the programs cannot: a process of its own that `gpuwire run` leaves behind
// before it becomes the program. It is nobody's child and belongs to no terminal, so that the program, its signals and
// its children are what they would be without it, and it ends with the last process that has something to tell.
#pragma once

namespace gpuwire::launcher {

inline constexpr const char* kAccountWatchName = "gpuwire-accounts";  // its argv[0]

// Starts it for what this process becomes, and names it in the environment. Where it cannot be had (Linux before 5.3,
// no /proc) programs print their accounts themselves, and those that are cut short print none.
void start_account_watch() noexcept;

// Its main(): with the descriptors that start_account_watch() left open.
int watch_accounts();

}  // namespace gpuwire::launcher
