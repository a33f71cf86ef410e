// Corpora of data before a session's frames, and of shared memory.
#pragma once

#include "test/fuzz/corpus_images.hpp"

namespace gpuwire::test {

void add_resumptions(const WriteInput& write);
// The first byte of these targets' inputs selects their kind: `write` adds nothing before it.
void add_rdma(const WriteInput& write);
void add_shared_memory(const WriteInput& write);

}  // namespace gpuwire::test
