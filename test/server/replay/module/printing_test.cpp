#include "server/replay/module/printing.hpp"

#include <doctest/doctest.h>

#include "protocol/fatbin/linked_image.hpp"
#include "test/protocol/fatbin/fatbin_builder.hpp"

using namespace gpuwire;
using fatbin::test::build_container;
using fatbin::test::Bytes;
using server::kSearchedBytesMax;

namespace {

const std::string kSilent = ".version 7.8 .target sm_75 .visible .entry k() { ret; }";
const std::string kPrinting = kSilent + " .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);";
constexpr uint16_t kOtherKind = 0x40;

std::string elf(const std::string& contents) {
  return "\x7f"
         "ELF" +
         contents;
}

bool may_print(const std::string& image) { return server::may_print(std::as_bytes(std::span(image))); }
bool may_print(const Bytes& image) { return server::may_print(std::as_bytes(std::span(image))); }

}  // namespace

TEST_CASE("PTX and cubins can print where they name vprintf") {
  CHECK_FALSE(may_print(kSilent));
  CHECK(may_print(kPrinting));
  CHECK_FALSE(may_print(elf("nothing")));
  CHECK(may_print(elf("a symbol, vprintf")));
}

TEST_CASE("a fat binary can print where one of its entries can, compressed or not") {
  using fatbin::test::kElf, fatbin::test::kLz4, fatbin::test::kPtx, fatbin::test::kZstd;
  for (uint64_t compression : {uint64_t{0}, kLz4, kZstd}) {
    CAPTURE(compression);
    CHECK_FALSE(may_print(build_container({{kPtx, 75, kSilent, compression}, {kElf, 90, kSilent, compression}})));
    CHECK(may_print(build_container({{kPtx, 75, kSilent, compression}, {kElf, 90, kPrinting, compression}})));
  }
}

TEST_CASE("a program to be linked can print where one of its units can") {
  const Bytes silent = build_container({{fatbin::test::kElf, 90, kSilent}});
  const Bytes printing = build_container({{fatbin::test::kElf, 90, kPrinting}});
  CHECK_FALSE(may_print(fatbin::write_linked_image(std::vector<std::span<const uint8_t>>{silent, silent}).value()));
  const std::vector<std::span<const uint8_t>> units{silent, printing};
  Bytes linked = fatbin::write_linked_image(units).value();
  CHECK(may_print(linked));
  linked.resize(linked.size() - 16);
  CHECK(may_print(linked));
}

TEST_CASE("an image too large to be searched counts as printing, also the sum of all entries and their contents") {
  const std::string most(kSearchedBytesMax, 'a'), half(kSearchedBytesMax / 2 + 1, 'a');
  CHECK_FALSE(may_print(most));
  CHECK(may_print(most + "a"));
  for (uint64_t compression : {uint64_t{0}, fatbin::test::kZstd}) {
    CAPTURE(compression);
    CHECK_FALSE(may_print(build_container({{fatbin::test::kPtx, 75, half, compression}})));
    CHECK(may_print(
        build_container({{fatbin::test::kPtx, 75, half, compression}, {fatbin::test::kPtx, 80, half, compression}})));
  }
}

TEST_CASE("an image that cannot be read counts as printing") {
  CHECK(may_print(build_container({{kOtherKind, 90, kSilent}})));
  Bytes damaged = build_container({{fatbin::test::kElf, 90, kSilent, fatbin::test::kZstd}});
  damaged[16 + 64] ^= 0xFF;  // the first byte of the payload
  CHECK(may_print(damaged));
  Bytes cut = build_container({{fatbin::test::kElf, 90, kSilent}});
  cut.resize(cut.size() / 2);
  CHECK(may_print(cut));
  Bytes wrapper(24);
  fatbin::test::put<uint32_t>(wrapper, 0, fatbin::kWrapperMagic);
  CHECK(may_print(wrapper));
}
