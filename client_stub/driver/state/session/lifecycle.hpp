// The life of the process object: cuInit makes it over a session of a server, and fork() and the program's exit end it.
#pragma once

#include <cuda.h>

#include <memory>

namespace gpuwire::client {

class ServerSession;
class Session;

inline constexpr int kDriverVersionMax = 13000;  // of the API that the stub knows, as cuDriverGetVersion says it

// cuInit without its argument check.
CUresult initialise_process() noexcept;

// Returns the answer of cuDriverGetVersion: the version of the server's driver, or the stub's if that is older or no
// server can be reached. The first call connects, for the cuInit that follows, and leaves the process uninitialised, so
// a child of fork() may still begin its own session.
int driver_version() noexcept;
// The server's own, whatever the stub knows. 0: no server has been in reach yet.
int server_driver_version() noexcept;

// A process over a session that is connected: initialise_process(), and the tests. Publishes it.
CUresult install_process(std::unique_ptr<ServerSession> server, const char* visible_devices) noexcept;
CUresult install_process(std::unique_ptr<Session> connection, const char* visible_devices) noexcept;
// Tests only: as if the process had never been initialised.
void uninstall_process_for_test() noexcept;

}  // namespace gpuwire::client
