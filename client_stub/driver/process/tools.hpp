// Tools that look into NVIDIA's driver: compute-sanitizer, cuda-gdb, profilers over CUPTI. They want the driver and its
// device in the program's own process, so none of them works here. The program runs on without them, and one line on
// standard error says so for each.
#pragma once

#include <cuda.h>

namespace gpuwire::client {

// Before the driver starts: is there one in the program's environment, or does a debugger of device code trace the
// process?
void report_attached_tools() noexcept;
// Somebody asked for a private table that is not offered. Tools are recognised by the library that their table's name
// lies in.
void report_refused_table(const CUuuid* id) noexcept;

}  // namespace gpuwire::client
