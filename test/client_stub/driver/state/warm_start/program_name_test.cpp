#include "client_stub/driver/state/warm_start/program_name.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

namespace gpuwire::client {

TEST_CASE("An interpreter is told from others, and its programs by their script") {
  using Arguments = std::vector<std::string>;
  CHECK(script_of("/usr/bin/train", Arguments{"train", "data"}) == "");
  CHECK(script_of("/usr/bin/python3.11", Arguments{"python", "-u", "no/such.py", "--data", "x"}) == "no/such.py");
  CHECK(script_of("/usr/bin/python3.11", Arguments{"python", "-m", "train", "x"}) == "-mtrain");
  CHECK(script_of("/usr/bin/python3.11", Arguments{"python", "-c", "import torch"}) == "-cimport torch");
  CHECK(script_of("/usr/bin/python3.11", Arguments{"python"}) == "");
  std::set<SubjectDigest> digests = {program_digest("/a", 1, 2, ""), program_digest("/a", 1, 3, ""),
                                     program_digest("/a", 2, 2, ""), program_digest("/b", 1, 2, ""),
                                     program_digest("/a", 1, 2, "script")};
  CHECK(digests.size() == 5);
  CHECK(own_program_digest() == own_program_digest());
}

}  // namespace gpuwire::client
