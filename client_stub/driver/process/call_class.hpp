// CallClass says what a call of the driver sends, as the description of the API has it.
#pragma once

#include <cstdint>

namespace gpuwire::client {

enum class CallClass : uint8_t { local, posted, called };

}  // namespace gpuwire::client
