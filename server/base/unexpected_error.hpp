// Ends the broker after an unhandled error.
#pragma once

namespace gpuwire::server {

// The exit status of a process that ends at such an error.
inline constexpr int kUnexpectedErrorExit = 3;

// From now on an uncaught exception of any thread is logged and ends the process at once: no frame is left, and no
// destructor, exit handler or destructor of a global object runs. The owner of a session's worker kills the worker in
// its destructor, so an error that unwound the broker's stack would end every session. A broker that ends here ends as
// if it had been killed, and the next broker adopts its sessions.
//
// Precondition: no frame below the caller has a `catch (...)` or is `noexcept`. The C++ runtime calls the terminate
// handler before it leaves a frame only if no frame would catch the exception.
void end_at_unexpected_errors();

}  // namespace gpuwire::server
