// The user's settings for gpuwire from the environment. The program may have emptied the environment before its first
// call, because the driver's own library needs none.
#pragma once

namespace gpuwire::client {

// The settings that `gpuwire attach` has written for all programs of the machine: lines NAME=VALUE.
inline constexpr const char* kAttachedSettings = "/etc/gpuwire/attached.env";

// Returns the value of a setting: GPUWIRE_*, HOME, XDG_CONFIG_HOME or XDG_STATE_HOME. If the process has saved its
// settings, a variable that is missing in the environment has its saved value, or its value at the program's start. A
// program that never had a GPUWIRE_SERVER also has the attached settings. Null if the setting is not set. Variables
// that the driver's own library reads (CUDA_*) are read from the environment alone, as natively.
const char* setting(const char* name) noexcept;

// Saves the current settings, and reads the attached ones if there is no GPUWIRE_SERVER. Precondition: a library is
// being loaded, on one thread. A second call changes nothing.
void keep_settings(const char* attached = kAttachedSettings) noexcept;

}  // namespace gpuwire::client
