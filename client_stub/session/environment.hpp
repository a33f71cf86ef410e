// The user's settings for gpuwire out of the environment, which the program may have emptied before its first call: the
// driver's own library is found without one.
#pragma once

namespace gpuwire::client {

// The settings that `gpuwire attach` has written for all programs of the machine: lines NAME=VALUE.
inline constexpr const char* kAttachedSettings = "/etc/gpuwire/attached.env";

// The value of a setting: GPUWIRE_*, HOME, XDG_CONFIG_HOME or XDG_STATE_HOME. In a process that has saved its settings,
// a variable that is missing in the environment has its saved value, or its value at the program's start. A program
// that has never had a GPUWIRE_SERVER also has the attached settings. Null if the setting is not set. Variables that
// the driver's own library reads (CUDA_*) are read from the environment alone, as natively.
const char* setting(const char* name) noexcept;

// Copies the settings that there are, and reads the attached ones where there is no GPUWIRE_SERVER. While a library is
// loaded, on one thread; a second call changes nothing.
void keep_settings(const char* attached = kAttachedSettings) noexcept;

}  // namespace gpuwire::client
