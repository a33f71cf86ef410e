// `gpuwire suspend` and `gpuwire resume`: move the device memory of the user's own programs to the server's own memory,
// and back.
#pragma once

namespace gpuwire::launcher {

// As a main().
int suspend_command(int argc, char** argv);
int resume_command(int argc, char** argv);

}  // namespace gpuwire::launcher
