// The output that the program has to get before it learns of a failure.
#pragma once

#include <cuda.h>

namespace gpuwire::server {

class Replay;

// Before a failure is reported, by a reply or by a notice: the driver's text about it, and the output of kernels before
// it, have left before the error code. In a lost context the program asks nothing more here, and a query that finds the
// loss writes nothing: a synchronising call does (CUDA programming guide, "Formatted Output"). Any thread.
void explain(Replay& replay, CUresult result);

}  // namespace gpuwire::server
