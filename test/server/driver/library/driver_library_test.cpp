// The driver that a worker opens, and its error for an installed driver that does not work.
#include "server/driver/library/driver_library.hpp"

#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "test/support/temporary_directory.hpp"

namespace gpuwire::server {
namespace {

// A machine whose NVIDIA driver answers 803 (its library was upgraded, its kernel module was not).
struct Machine {
  test::TemporaryDirectory folder;
  DriverOptions options;

  Machine() {
    options.nvidia_library = GPUWIRE_TEST_BROKEN_DRIVER;
    options.nvidia_device_files = {folder.path() / "nvidiactl"};
    options.software_library = GPUWIRE_TEST_WORKING_DRIVER;
  }
  // How often the driver that works was made strict.
  static int made_strict(const DriverLibrary& driver) {
    return reinterpret_cast<int (*)()>(driver.symbol("fake_driver_made_strict"))();
  }
  void add_device_file() const { std::ofstream(options.nvidia_device_files[0]) << "a device"; }
};

}  // namespace

TEST_CASE("a driver that is there and does not work is an error that says what to do, and no software device") {
  Machine machine;
  machine.add_device_file();
  for (auto choice : {DeviceChoice::automatic, DeviceChoice::cuda}) {
    machine.options.device = choice;
    auto driver = DriverLibrary::open(machine.options);
    REQUIRE_FALSE(driver);
    CHECK(driver.error().find("cuInit of ") == 0);
    CHECK(driver.error().find("CUDA_ERROR_OF_A_TEST (803)") != std::string::npos);
    CHECK(driver.error().find("restart the machine") != std::string::npos);
  }
}

TEST_CASE("the software device is taken without being asked for where no device file of NVIDIA's is") {
  Machine machine;
  auto driver = DriverLibrary::open(machine.options);
  REQUIRE(driver);
  CHECK(driver->software());
}

TEST_CASE("the software device is taken without being asked for where NVIDIA's library is not") {
  Machine machine;
  machine.add_device_file();
  machine.options.nvidia_library = "libcuda_that_nobody_has.so.1";
  auto driver = DriverLibrary::open(machine.options);
  REQUIRE(driver);
  CHECK(driver->software());
}

TEST_CASE("the software device is made strict, and NVIDIA's driver is left as it is") {
  Machine machine;
  machine.options.nvidia_library = GPUWIRE_TEST_WORKING_DRIVER;
  auto nvidia = DriverLibrary::open(machine.options);
  REQUIRE(nvidia);
  const int before = Machine::made_strict(*nvidia);
  machine.options.device = DeviceChoice::software;
  auto software = DriverLibrary::open(machine.options);
  REQUIRE(software);
  CHECK(Machine::made_strict(*software) == before + 1);
  machine.options.device = DeviceChoice::cuda;
  REQUIRE(DriverLibrary::open(machine.options));
  CHECK(Machine::made_strict(*software) == before + 1);
}

TEST_CASE("a library that is no driver is an error, not a machine without one") {
  Machine machine;
  machine.add_device_file();
  machine.options.nvidia_library = machine.folder.path() / "libcuda.so.1";
  std::ofstream(machine.options.nvidia_library) << "scratched";
  auto driver = DriverLibrary::open(machine.options);
  REQUIRE_FALSE(driver);
  CHECK(driver.error().find("cannot open ") == 0);
}

TEST_CASE("a driver that works is taken before the software device") {
  Machine machine;
  machine.options.nvidia_library = GPUWIRE_TEST_WORKING_DRIVER;
  auto driver = DriverLibrary::open(machine.options);
  REQUIRE(driver);
  CHECK_FALSE(driver->software());
}

}  // namespace gpuwire::server
