// What this process uses for RDMA, if it is there.
#pragma once

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "protocol/transport/rdma.hpp"

namespace gpuwire::client {

// The one of all its sessions; opened with the first, closed with the last. The plug-in lies beside this library, or is
// what GPUWIRE_RDMA_PLUGIN names. Any thread. The error: why there is none, one line.
tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric();

}  // namespace gpuwire::client
