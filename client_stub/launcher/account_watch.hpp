// The watch: a process that prints the accounts of `--stats` if the programs cannot. `gpuwire run` starts it before it
// becomes the program. The watch is no child of the program and has no terminal, so the program, its signals and its
// children are the same as without it. It ends with the last process that has an account.
#pragma once

namespace gpuwire::launcher {

inline constexpr const char* kAccountWatchName = "gpuwire-accounts";  // its argv[0]

// Starts the watch for the program that this process becomes, and names it in the environment. If the watch is
// unavailable (Linux before 5.3, no /proc), programs print their accounts themselves, and killed programs print none.
void start_account_watch() noexcept;

// The watch's main(). Precondition: start_account_watch() has left its descriptors open.
int watch_accounts();

}  // namespace gpuwire::launcher
