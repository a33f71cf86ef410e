// Descriptors of a worker's, which may have been taken over by its client.
#pragma once

#include <string_view>

namespace gpuwire::server::ipc {

// Whether the descriptor is one that workers share: memory (of memfd_create), the driver's device behind an export, or
// the eventfd that stands for a handle without one. Closing any of these waits for nobody. A socket may wait until its
// data are sent (SO_LINGER), a file until the server of its file system answers (FUSE, NFS). This function asks
// neither: it does not block.
bool is_shareable(int descriptor);

inline constexpr std::string_view kNotShareable =
    "a descriptor that is neither memory nor the driver's, or more of them than a message has";

}  // namespace gpuwire::server::ipc
