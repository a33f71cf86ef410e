// How one process asks another for a checkpoint: an abstract socket named after the process that is asked, and a thread
// behind it.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::software_device {

class ProcessCheckpoint;

enum class CheckpointStep : uint32_t { get_state, get_thread, lock, checkpoint, restore, unlock };

// Starts the thread; both live as long as the process. Without a socket nobody can ask.
void serve_checkpoints(ProcessCheckpoint& process);

// Asks, and waits for the answer: the state, or the thread's number. `timeout_ms`: of a lock.
tl::expected<uint32_t, CUresult> ask_process(int pid, CheckpointStep step, unsigned timeout_ms = 0);

}  // namespace gpuwire::software_device
