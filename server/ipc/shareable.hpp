// Checks descriptors from a worker, which its client may have compromised.
#pragma once

#include <string_view>

namespace gpuwire::server::ipc {

// Returns whether the descriptor is of a kind that workers share: memory (memfd_create), the driver's device behind an
// export, or the eventfd that represents a handle without a descriptor. Closing any of these never blocks. Closing a
// socket may wait until its data are sent (SO_LINGER), and closing a file until the server of its file system answers
// (FUSE, NFS). This function itself does not block.
bool is_shareable(int descriptor);

inline constexpr std::string_view kNotShareable =
    "a descriptor that is neither memory nor the driver's, or more of them than a message has";

}  // namespace gpuwire::server::ipc
