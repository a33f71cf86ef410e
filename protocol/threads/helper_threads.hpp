// Threads that help another thread with work on the program's memory.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace gpuwire {

// Starts `count` threads that run `body`, or as many as the system creates. They block all signals except those of
// faults, because they may access memory whose faults the program handles. The caller joins them.
std::vector<std::thread> start_helper_threads(unsigned count, const std::function<void()>& body) noexcept;

}  // namespace gpuwire
