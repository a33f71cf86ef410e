// The process that prints the accounts of `--stats` when the programs cannot. `gpuwire run` leaves it behind before it
// becomes the program. The process is nobody's child and belongs to no terminal, so that the program, its signals and
// its children are the same as without it. It ends with the last process that has an account.
#pragma once

namespace gpuwire::launcher {

inline constexpr const char* kAccountWatchName = "gpuwire-accounts";  // its argv[0]

// Starts the watch for the program that this process becomes, and names it in the environment. Where the watch is not
// available (Linux before 5.3, no /proc) programs print their accounts themselves, and killed programs print none.
void start_account_watch() noexcept;

// Its main(): with the descriptors that start_account_watch() left open.
int watch_accounts();

}  // namespace gpuwire::launcher
