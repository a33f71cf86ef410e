// What ends of connections say to each other before a session's frames, and in memory that both have.
#pragma once

#include "test/fuzz/corpus_images.hpp"

namespace gpuwire::test {

void add_resumptions(const WriteInput& write);
// These targets' first byte chooses what the rest is: `write` puts nothing before it.
void add_rdma(const WriteInput& write);
void add_shared_memory(const WriteInput& write);

}  // namespace gpuwire::test
