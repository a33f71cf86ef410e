// The form in which a driver gets an image that a client has sent.
#pragma once

#include <memory>

#include "protocol/fatbin/linked_image.hpp"
#include "server/module_cache/module_image.hpp"

namespace gpuwire::server {

// Its bytes, or a wrapper around the containers in them, kept in `wrapper`. Null: it is not well-formed, and a driver,
// which gets no length, could read past its end.
const void* driver_image(const ModuleImage& image, std::shared_ptr<const fatbin::LinkedWrapper>& wrapper);

}  // namespace gpuwire::server
