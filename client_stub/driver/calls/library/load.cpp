// The code that runs when the program loads libcuda.so.1. It only reads the environment.
#include "client_stub/driver/calls/call/entry.hpp"
#include "client_stub/session/environment.hpp"

__attribute__((constructor)) static void load() {
  gpuwire::client::keep_settings();
  gpuwire::client::observe_from_environment();
}
