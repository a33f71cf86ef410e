// The life of the process object: cuInit makes it over a session of a server, and fork() and the program's exit end it.
#pragma once

#include <cuda.h>

#include <memory>

namespace gpuwire::client {

class ServerSession;
class Session;

inline constexpr int kDriverVersionMax = 13000;  // of the stub's API, in the form of cuDriverGetVersion

// cuInit without its argument check.
CUresult initialise_process() noexcept;

// Returns the answer of cuDriverGetVersion: the version of the server's driver, or the stub's if that is older or no
// server can be reached. The first call connects, for the cuInit that follows, and leaves the process uninitialised, so
// a child of fork() may still begin its own session.
int driver_version() noexcept;
// The server's own version, even above the stub's. 0: no server has been reached.
int server_driver_version() noexcept;

// Makes and publishes a process over a connected session, for initialise_process() and the tests.
CUresult install_process(std::unique_ptr<ServerSession> server, const char* visible_devices) noexcept;
CUresult install_process(std::unique_ptr<Session> connection, const char* visible_devices) noexcept;
// Tests only: makes the process uninitialised.
void uninstall_process_for_test() noexcept;

}  // namespace gpuwire::client
