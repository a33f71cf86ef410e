// CallClass is the kind of frame that a call of the driver sends, from the API description.
#pragma once

#include <cstdint>

namespace gpuwire::client {

enum class CallClass : uint8_t { local, posted, called };

}  // namespace gpuwire::client
