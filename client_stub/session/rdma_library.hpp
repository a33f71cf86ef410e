// This process's RDMA library, if there is one.
#pragma once

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "protocol/transport/rdma.hpp"

namespace gpuwire::client {

// The library of all sessions of the process, opened with the first session and closed with the last. The plug-in lies
// beside this library, or GPUWIRE_RDMA_PLUGIN names it. Any thread. The error is one line with the reason.
tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric();

}  // namespace gpuwire::client
