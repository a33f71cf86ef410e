// What runs when the program loads libcuda.so.1: a look at the environment, and nothing else.
#include "client_stub/driver/call/entry.hpp"

__attribute__((constructor)) static void load() { gpuwire::client::observe_from_environment(); }
