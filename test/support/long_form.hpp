// Whether a test runs in its long form (test/long/README.md).
#pragma once

#include <cstdlib>

namespace gpuwire::test {

// Returns whether `make test-long` runs the test. Any thread.
inline bool is_long_form() {
  const char* asked = std::getenv("GPUWIRE_TEST_LONG");
  return asked != nullptr && *asked != '\0' && *asked != '0';
}

}  // namespace gpuwire::test
