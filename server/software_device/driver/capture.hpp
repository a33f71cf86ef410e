// Whether a stream's work goes into a graph instead of being carried out.
#pragma once

#include <cuda.h>

#include "server/software_device/driver/stream_object.hpp"

namespace gpuwire::software_device {

bool is_capturing(Stream& stream);

}  // namespace gpuwire::software_device
