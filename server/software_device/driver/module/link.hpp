// The linker's strict form: what NVIDIA's driver does not survive is refused.
#pragma once

namespace gpuwire::software_device {

// While strict, a link that is added to, completed or destroyed on another thread than the one that made it is refused
// with CUDA_ERROR_INVALID_HANDLE, and a line that says why. Off at first. Any thread.
void set_strict_links(bool strict) noexcept;

}  // namespace gpuwire::software_device
