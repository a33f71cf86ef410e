#include "protocol/cuda_abi/proc_address.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using gpuwire::cuda_abi::ProcAddress;
using gpuwire::cuda_abi::resolve_proc_address;

constexpr int kDriver = 13000;

struct Rule {
  std::string name;
  std::map<int, std::string> legacy, per_thread;  // first version to symbol
};

std::map<int, std::string> read_steps(const std::string& name, std::istringstream words) {
  std::map<int, std::string> steps;
  for (std::string word; words >> word;) {
    size_t digits = 0;
    const int version = std::stoi(word, &digits);
    steps[version] = name + word.substr(digits);
  }
  return steps;
}

std::vector<Rule> read_rules() {
  std::ifstream file(GPUWIRE_PROC_ADDRESS_RULES);
  REQUIRE(file.good());
  std::vector<Rule> rules;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    const size_t space = line.find(' '), bar = line.find('|');
    Rule rule{.name = line.substr(0, space)};
    rule.legacy =
        read_steps(rule.name, std::istringstream(line.substr(space, bar == std::string::npos ? bar : bar - space)));
    rule.per_thread =
        bar == std::string::npos ? rule.legacy : read_steps(rule.name, std::istringstream(line.substr(bar + 1)));
    rules.push_back(rule);
  }
  return rules;
}

void check_found(const std::string& name, int version, cuuint64_t flags, const std::string& symbol) {
  const ProcAddress answer = resolve_proc_address(name, version, flags, kDriver);
  CAPTURE(name);
  CAPTURE(version);
  CAPTURE(flags);
  CHECK(answer.result == CUDA_SUCCESS);
  CHECK(answer.status == CU_GET_PROC_ADDRESS_SUCCESS);
  REQUIRE(answer.symbol != nullptr);
  CHECK(std::string(answer.symbol) == symbol);
}

void check_absent(const std::string& name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult status) {
  const ProcAddress answer = resolve_proc_address(name, version, flags, kDriver);
  CAPTURE(name);
  CAPTURE(version);
  CAPTURE(flags);
  CHECK(answer.result == CUDA_SUCCESS);
  CHECK(answer.symbol == nullptr);
  CHECK(answer.status == status);
}

void check_steps(const std::string& name, const std::map<int, std::string>& steps, cuuint64_t flags) {
  std::string before;
  for (const auto& [version, symbol] : steps) {
    if (before.empty()) {
      check_absent(name, version - 1, flags, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    } else {
      check_found(name, version - 1, flags, before);
    }
    check_found(name, version, flags, symbol);
    before = symbol;
  }
  check_found(name, kDriver, flags, before);
}

}  // namespace

TEST_CASE("Every rule resolves at and just below each of its versions, for every flag") {
  const auto rules = read_rules();
  CHECK(rules.size() == 477);
  for (const Rule& rule : rules) {
    check_steps(rule.name, rule.legacy, CU_GET_PROC_ADDRESS_DEFAULT);
    check_steps(rule.name, rule.legacy, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    check_steps(rule.name, rule.per_thread, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    check_steps(rule.name, rule.per_thread, 3);
  }
}

TEST_CASE("A version newer than the driver is an invalid value for every name") {
  for (const char* name : {"cuMemAlloc", "cuInit", "cuNoSuchFunction", ""}) {
    CHECK(resolve_proc_address(name, kDriver + 10, CU_GET_PROC_ADDRESS_DEFAULT, kDriver).result ==
          CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(resolve_proc_address("cuMemAlloc", 13010, CU_GET_PROC_ADDRESS_DEFAULT, 13010).result == CUDA_SUCCESS);
}

TEST_CASE("Names that are unknown, empty or carry a suffix succeed without a function") {
  for (const char* name : {"", "cu", "cuNoSuchFunction", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cumemalloc", "zz"}) {
    check_absent(name, kDriver, CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  }
  check_absent("", 0, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

TEST_CASE("Known traps: a suffix that is not the newest, and a per-thread variant that came later") {
  check_found("cuGraphInstantiate", 13000, 0, "cuGraphInstantiate_v2");
  check_found("cuDeviceGetUuid", 9020, 0, "cuDeviceGetUuid");
  check_found("cuMemcpy", 4000, 0, "cuMemcpy");
  check_absent("cuMemcpy", 6050, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
               CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  check_found("cuMemcpy", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, "cuMemcpy_ptds");
}

TEST_CASE("Flags that no driver knows are refused") {
  CHECK(resolve_proc_address("cuInit", kDriver, 4, kDriver).result == CUDA_ERROR_INVALID_VALUE);
}
