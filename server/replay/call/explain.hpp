// What is owed to the program before it learns of a failure.
#pragma once

#include <cuda.h>

namespace gpuwire::server {

class Replay;

// Before a failure is told, by a reply or by a notice: what the driver printed about it, and what kernels printed
// before it, has left before the error code. Of a context that is lost the program asks nothing more here, and a query
// that finds out writes nothing: a synchronising call does (CUDA programming guide, "Formatted Output"). Any thread.
void explain(Replay& replay, CUresult result);

}  // namespace gpuwire::server
