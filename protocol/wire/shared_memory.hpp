// What a client and a server of one machine say to each other about memory that both have.
#pragma once

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::wire {

inline constexpr uint32_t kPrefaceSharedMemory = 8;
inline constexpr auto kControlSharedMemory = ControlOrdinal(11);
inline constexpr auto kRegionShare = SessionOrdinal(55);

}  // namespace gpuwire::wire
