// The form of a client's image that is passed to the driver.
#pragma once

#include <memory>

#include "protocol/fatbin/linked_image.hpp"
#include "server/module_cache/module_image.hpp"

namespace gpuwire::server {

// Returns the image's bytes, or a wrapper around the containers in them, which `wrapper` then owns. Returns null if the
// image is not well-formed: the driver, which gets no length, could read past its end.
const void* driver_image(const ModuleImage& image, std::shared_ptr<const fatbin::LinkedWrapper>& wrapper);

}  // namespace gpuwire::server
