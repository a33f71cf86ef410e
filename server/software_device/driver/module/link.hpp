// The linker's strict mode, which refuses calls that may crash NVIDIA's driver.
#pragma once

namespace gpuwire::software_device {

// In strict mode, adding to, completing or destroying a link on another thread than its creator's is refused with
// CUDA_ERROR_INVALID_HANDLE and a line that gives the reason. Initially off. Thread: any.
void set_strict_links(bool strict) noexcept;

}  // namespace gpuwire::software_device
