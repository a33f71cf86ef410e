// This process's RDMA library, if there is one.
#pragma once

#include <memory>
#include <string>

#include <tl/expected.hpp>

#include "protocol/transport/rdma.hpp"

namespace gpuwire::client {

// Returns the library of all sessions of the process, which the first session opens and the last one closes. The
// plug-in is beside this library, or GPUWIRE_RDMA_PLUGIN names it. Thread: any. The error is one line with the reason.
tl::expected<std::shared_ptr<transport::RdmaFabric>, std::string> rdma_fabric();

}  // namespace gpuwire::client
