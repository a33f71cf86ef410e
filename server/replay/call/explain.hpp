// The device's output that the program must receive before it learns of a failure.
#pragma once

#include <cuda.h>

namespace gpuwire::server {

class Replay;

// Sends the driver's text about a failure, and the output of kernels before it. Called before a reply or a notice
// reports the failure, so that both precede the error code. Once a context is lost, the program makes no more calls in
// it that would flush its output, and a query that finds the loss does not flush it either: a synchronising call does
// (CUDA programming guide, "Formatted Output"). Any thread.
void explain(Replay& replay, CUresult result);

}  // namespace gpuwire::server
