// The entry that libFuzzer and the replay driver call.
#pragma once

#include <cstddef>
#include <cstdint>

// Returns the number of parsed items for the target's last line; 0: the target does not count.
inline uint64_t g_frames_decoded = 0;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
