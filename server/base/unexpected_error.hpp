// Ends the broker after an unhandled error.
#pragma once

namespace gpuwire::server {

// The exit status of a process that has met such an error.
inline constexpr int kUnexpectedErrorExit = 3;

// From now on an exception that nobody catches, of any thread, is logged and ends the process at once: no frame is
// left, and no destructor, exit handler or global object's end runs. The owner of a session's worker kills it in its
// destructor, so an error that unwound the broker's stack would end every session; a broker that ends here ends as if
// it had been killed, and the next one adopts them.
//
// Precondition: no frame below the caller has a handler that takes every exception, nor is `noexcept`. The C++ runtime
// calls the handler before it leaves a frame only if no frame at all would take the exception.
void end_at_unexpected_errors();

}  // namespace gpuwire::server
