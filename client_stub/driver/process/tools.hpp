// Tools that use NVIDIA's driver directly: compute-sanitizer, cuda-gdb, profilers over CUPTI. They need the driver and
// its device in the program's own process, so they do not work here. The program runs without them, and one line on
// standard error reports each.
#pragma once

#include <cuda.h>

namespace gpuwire::client {

// Reports a tool in the program's environment, or a debugger of device code that traces the process. Precondition: the
// driver has not started.
void report_attached_tools() noexcept;
// The program has asked for an unsupported private table. A tool is recognised by the library that contains the table's
// name.
void report_refused_table(const CUuuid* id) noexcept;

}  // namespace gpuwire::client
