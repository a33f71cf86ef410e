// Corpora of messages between client and server within a session.
#pragma once

#include "test/fuzz/corpus_images.hpp"

namespace gpuwire::test {

// Frames of a client, for the replay; the first byte is the target's choice.
void add_replays(const WriteInput& write);
// A server's welcome, and the data after it.
void add_sessions(const WriteInput& write);
void add_management_queries(const WriteInput& write);

}  // namespace gpuwire::test
