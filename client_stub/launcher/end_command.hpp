// `gpuwire end`: ends programs of the user's own tenant, which run or wait at a server.
#pragma once

namespace gpuwire::launcher {

// As a main().
int end_command(int argc, char** argv);

}  // namespace gpuwire::launcher
