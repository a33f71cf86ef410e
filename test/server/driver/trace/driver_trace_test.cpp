// The trace of driver calls: what it replaces, and what it writes.
#include "server/driver/trace/driver_trace.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/driver_table_entries.hpp"

namespace gpuwire::server {
namespace {

// A folder for one test.
class TraceFolder {
 public:
  TraceFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gpuwire-trace-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TraceFolder() { std::filesystem::remove_all(path_); }
  TraceFolder(const TraceFolder&) = delete;

  std::string file() const { return path_ / "calls"; }
  std::string written() const { return file() + "." + std::to_string(::getpid()); }
  std::vector<std::string> lines() const {
    std::ifstream in(written());
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }

 private:
  std::filesystem::path path_;
};

// Stands for each function of a library.
template <auto Entry>
struct Absent;
template <class... Arguments, CUresult (CUDAAPI* DriverTable::*Entry)(Arguments...)>
struct Absent<Entry> {
  static CUresult CUDAAPI call(Arguments...) { return CUDA_ERROR_STUB_LIBRARY; }
};

}  // namespace

TEST_CASE("A call in a trace is one line with its thread, name, arguments, result and time") {
  TraceFolder folder;
  DriverTable table;
  table.cuMemAlloc_v2 = [](CUdeviceptr* address, size_t) { return *address = 0x7000, CUDA_SUCCESS; };
  table.cuDeviceGetAttribute = [](int*, CUdevice_attribute, CUdevice) { return CUDA_ERROR_INVALID_DEVICE; };
  table.cuIpcOpenMemHandle_v2 = [](CUdeviceptr*, CUipcMemHandle handle, unsigned) {
    return handle.reserved[0] == 0x4a ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  };
  auto trace = DriverTrace::create(folder.file());
  REQUIRE(trace.has_value());
  (*trace)->put_before(table);

  CUdeviceptr address = 0;
  CHECK(table.cuMemAlloc_v2(&address, 4096) == CUDA_SUCCESS);
  CHECK(address == 0x7000);
  CHECK(table.cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, -1) == CUDA_ERROR_INVALID_DEVICE);
  CUipcMemHandle handle{};
  handle.reserved[0] = 0x4a;
  CHECK(table.cuIpcOpenMemHandle_v2(nullptr, handle, 1) == CUDA_SUCCESS);

  const auto lines = folder.lines();
  REQUIRE(lines.size() == 3);
  const std::string thread = std::to_string(::gettid()), time = R"( \d+\.\d{3})";
  CHECK(std::regex_match(lines[0], std::regex(thread + " cuMemAlloc_v2 0x[0-9a-f]+ 0x1000 = 0" + time)));
  CHECK(std::regex_match(lines[1], std::regex(thread + " cuDeviceGetAttribute 0x0 0xa 0xffffffff = 101" + time)));
  CHECK(std::regex_match(lines[2], std::regex(thread + R"( cuIpcOpenMemHandle_v2 0x0 \{4a0{126}\} 0x1 = 0)" + time)));
}

TEST_CASE("A trace replaces every function that a library has, and adds none") {
  TraceFolder folder;
  DriverTable empty, full;
  for_each_entry([&]<auto Entry>(const char*) { full.*Entry = &Absent<Entry>::call; });
  auto trace = DriverTrace::create(folder.file());
  REQUIRE(trace.has_value());
  (*trace)->put_before(empty);
  (*trace)->put_before(full);
  size_t entries = 0, added = 0, left = 0;
  for_each_entry([&]<auto Entry>(const char*) {
    ++entries;
    added += empty.*Entry != nullptr;
    left += full.*Entry == &Absent<Entry>::call;
  });
  CHECK(entries * sizeof(void*) == sizeof(DriverTable));
  CHECK(added == 0);
  CHECK(left == 0);
  CHECK(full.cuInit(0) == CUDA_ERROR_STUB_LIBRARY);
  CHECK(folder.lines().size() == 1);
}

TEST_CASE("The file of a trace is new, and its user's alone") {
  TraceFolder folder;
  REQUIRE(DriverTrace::create(folder.file()).has_value());
  struct stat status {};
  REQUIRE(::stat(folder.written().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  const auto second = DriverTrace::create(folder.file());
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().find(folder.written()) != std::string::npos);
}

}  // namespace gpuwire::server
