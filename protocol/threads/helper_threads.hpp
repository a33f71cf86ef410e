// Threads that help another one with work on memory of the program.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace gpuwire {

// Starts `count` threads that run `body`, or as many as the system gives. They take only the signals that a fault
// raises, for they may read memory whose faults the program handles. Their owner joins them.
std::vector<std::thread> start_helper_threads(unsigned count, const std::function<void()>& body) noexcept;

}  // namespace gpuwire
