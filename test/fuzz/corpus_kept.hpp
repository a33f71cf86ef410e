// Corpora of the server's stored state: entries of its keeper, and the register of credentials.
#pragma once

#include "test/fuzz/corpus_images.hpp"

namespace gpuwire::test {

void add_kept_entries(const WriteInput& write);
void add_registers(const WriteInput& write);

}  // namespace gpuwire::test
