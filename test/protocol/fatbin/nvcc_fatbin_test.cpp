#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "protocol/fatbin/kernel_parameters.hpp"

namespace {

using namespace gpuwire::fatbin;

std::vector<uint8_t> read_fixture(const std::string& name) {
  std::ifstream file(std::string(GPUWIRE_FATBIN_FIXTURES) + "/" + name, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const Entry* entry) {
  REQUIRE(entry != nullptr);
  const auto bytes = decompress(*entry);
  REQUIRE(bytes.has_value());
  return {bytes->begin(), bytes->end()};
}

}  // namespace

TEST_CASE("nvcc's fat binaries hold the same code in every compression mode") {
  const auto plain_bytes = read_fixture("none.fatbin");
  const auto plain = read_container(plain_bytes);
  REQUIRE(plain.has_value());
  for (const char* mode : {"none", "size", "speed", "balance", "default"}) {
    CAPTURE(mode);
    const auto bytes = read_fixture(std::string(mode) + ".fatbin");
    CHECK(container_bytes(bytes).value() == bytes.size());
    const auto entries = read_container(bytes);
    REQUIRE(entries.has_value());
    REQUIRE(entries->size() == 4);
    for (size_t i = 0; i < entries->size(); ++i) {
      if ((*entries)[i].kind == Kind::ptx) {
        CHECK(text_of(&(*entries)[i]) == text_of(&(*plain)[i]));
      } else {
        CHECK(text_of(&(*entries)[i]).substr(1, 3) == "ELF");
      }
    }
    const Entry* const turing = select_entry(*entries, {7, 5}, true);
    CHECK(text_of(turing).find(".target sm_75") != std::string::npos);
    CHECK(text_of(turing).find(".entry second") != std::string::npos);
    CHECK(select_entry(*entries, {9, 0}) == &(*entries)[2]);
    CHECK((*entries)[2].architecture_specific);
    CHECK(select_entry(*entries, {9, 0}, true) == &(*entries)[3]);
  }
}

TEST_CASE("The modes really differ: stored, LZ4 and zstd") {
  const auto compression = [](const char* mode) {
    const auto bytes = read_fixture(std::string(mode) + ".fatbin");
    return read_container(bytes).value().at(1).compression;
  };
  CHECK(compression("none") == Compression::none);
  CHECK(compression("speed") == Compression::lz4);
  CHECK(compression("size") == Compression::zstd);
}

TEST_CASE("A cubin is as long as its headers say") {
  const auto bytes = read_fixture("fixture.cubin");
  CHECK(elf_bytes(bytes).value() == bytes.size());
}

TEST_CASE("Output of nvcc gives the parameters of each kernel, as PTX and as code of every architecture") {
  using Numbers = std::vector<uint32_t>;
  std::vector<KernelParameterTable> tables;
  for (const char* name : {"fixture.cubin", "sm_90a.cubin", "sm_100.cubin", "sm_120.cubin"})
    read_cubin_parameters(read_fixture(name), tables.emplace_back());
  const auto container = read_fixture("default.fatbin");
  const auto entries = read_container(container);
  REQUIRE(entries.has_value());
  for (const Entry& entry : *entries) read_entries_parameters({&entry, 1}, tables.emplace_back());
  CHECK(tables.size() == 8);
  for (const KernelParameterTable& table : tables) {
    CAPTURE(&table - tables.data());
    REQUIRE(table.size() == 4);
    CHECK(table.at("first").offsets == Numbers{0, 8});
    CHECK(table.at("first").sizes == Numbers{8, 4});
    CHECK(table.at("second").offsets == Numbers{0, 8, 16});
    CHECK(table.at("second").sizes == Numbers{8, 8, 4});
    CHECK(table.at("nothing") == ParameterLayout{});
    CHECK(table.at("large").offsets == Numbers{0, 1, 20008});
    CHECK(table.at("large").sizes == Numbers{1, 20001, 8});
  }
}
