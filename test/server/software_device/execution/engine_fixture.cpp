#include "test/server/software_device/execution/engine_fixture.hpp"

#include <fstream>
#include <sstream>

namespace gpuwire::software_device::test {

std::string nvcc_ptx(const std::string& name) {
  std::ifstream file(std::string(GPUWIRE_TEST_PTX_FOLDER) + "/" + name + ".ptx");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace gpuwire::software_device::test
