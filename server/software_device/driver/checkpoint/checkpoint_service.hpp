// The transport of checkpoint requests between processes: an abstract socket named after the receiving process, and a
// thread that reads it.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::software_device {

class ProcessCheckpoint;

enum class CheckpointStep : uint32_t { get_state, get_thread, lock, checkpoint, restore, unlock };

// Starts the thread, which lives as long as the process, like the socket. Without a socket there are no requests.
void serve_checkpoints(ProcessCheckpoint& process);

// Sends a request and waits for the answer: the state, or the thread's number. `timeout_ms` applies to a lock.
tl::expected<uint32_t, CUresult> ask_process(int pid, CheckpointStep step, unsigned timeout_ms = 0);

}  // namespace gpuwire::software_device
