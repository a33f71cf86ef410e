// Threads that help another one with work on memory of the program.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace gpuwire {

// Starts `count` threads that run `body`, or as many as the system gives. Of signals they take those alone that a fault
// raises, for what they read may be memory whose faults the program serves. Their owner joins them.
std::vector<std::thread> start_helper_threads(unsigned count, const std::function<void()>& body) noexcept;

}  // namespace gpuwire
