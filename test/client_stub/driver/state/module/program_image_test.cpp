#include "client_stub/driver/state/module/program_image.hpp"
#include "protocol/fatbin/linked_image.hpp"

#include <doctest/doctest.h>
#include <elf.h>
#include <openssl/evp.h>

#include <cstring>
#include <string>

#include "test/protocol/fatbin/fatbin_builder.hpp"

namespace gpuwire::client {
namespace {

using fatbin::test::build_container;
using fatbin::test::Bytes;

struct Wrapper {
  uint32_t magic = fatbin::kWrapperMagic;
  uint32_t version = 1;
  const void* container = nullptr;
  const void* const* linked_from = nullptr;
};

constexpr std::string_view kPtxText = ".version 7.0\n.target sm_75\n.address_size 64\n";

ImageTarget gpu(uint32_t major, uint32_t minor) { return {.devices = {{major, minor}}, .ptx_only = false}; }
ImageTarget software() { return {.devices = {{7, 5}}, .ptx_only = true}; }

Bytes sent(const ProgramImage& image) {
  Bytes out(image.bytes());
  image.read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

Bytes three_entries() {
  return build_container({{.kind = fatbin::test::kElf, .sm = 75, .contents = "cubin for 75"},
                          {.kind = fatbin::test::kElf, .sm = 90, .contents = "cubin for 90"},
                          {.kind = fatbin::test::kPtx, .sm = 75, .contents = kPtxText, .flags = fatbin::test::kLz4}});
}

}  // namespace

TEST_CASE("Only the entry of a fat binary that the device can run is sent, as a fat binary of one entry") {
  Bytes container = three_entries();
  auto image = ProgramImage::select(container.data(), gpu(9, 0), false);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  CHECK(bytes.size() < container.size());
  auto entries = fatbin::read_container(bytes);
  REQUIRE(entries);
  REQUIRE(entries->size() == 1);
  CHECK(entries->front().kind == fatbin::Kind::cubin);
  CHECK(entries->front().sm == 90);
  CHECK(std::memcmp(entries->front().payload.data(), "cubin for 90", 12) == 0);
}

TEST_CASE("For the software device the PTX is sent, still compressed") {
  Bytes container = three_entries();
  Wrapper wrapper{.container = container.data()};
  auto image = ProgramImage::select(&wrapper, software(), true);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  auto entries = fatbin::read_container(bytes);
  REQUIRE(entries);
  REQUIRE(entries->size() == 1);
  CHECK(entries->front().compression == fatbin::Compression::lz4);
  auto text = fatbin::decompress(entries->front());
  REQUIRE(text);
  CHECK(std::string(text->begin(), text->end()) == kPtxText);
}

TEST_CASE("A fat binary with nothing for the device is no binary for this GPU") {
  Bytes container = build_container({{.kind = fatbin::test::kElf, .sm = 90, .contents = "cubin"}});
  auto image = ProgramImage::select(container.data(), gpu(7, 5), false);
  REQUIRE_FALSE(image);
  CHECK(image.error().result == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(image.error().message ==
        "the fat binary holds nothing that the server's device can run: it has sm_90, and the device is sm_75");
  CHECK(ProgramImage::select(container.data(), software(), false)
            .error()
            .message.ends_with(", a software device, which runs PTX alone"));
}

TEST_CASE("For devices that differ the whole fat binary is sent") {
  Bytes container = three_entries();
  ImageTarget target{.devices = {{7, 5}, {9, 0}}, .ptx_only = false};
  auto image = ProgramImage::select(container.data(), target, false);
  REQUIRE(image);
  CHECK(sent(**image) == container);
}

TEST_CASE("A program that was linked for other devices is sent with the units that it was linked from") {
  Bytes linked = build_container({{.kind = fatbin::test::kElf, .sm = 90, .contents = "linked cubin"}});
  Bytes unit = build_container({{.kind = fatbin::test::kPtx, .sm = 75, .contents = kPtxText}});
  const void* list[] = {unit.data(), linked.data(), nullptr};
  Wrapper wrapper{.version = 2, .container = linked.data(), .linked_from = list};
  auto image = ProgramImage::select(&wrapper, software(), false);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  auto containers = fatbin::read_linked_image(bytes);
  REQUIRE(containers);
  REQUIRE(containers->size() == 3);
  CHECK(Bytes((*containers)[0].begin(), (*containers)[0].end()) == linked);
  CHECK(Bytes((*containers)[1].begin(), (*containers)[1].end()) == unit);
  CHECK(Bytes((*containers)[2].begin(), (*containers)[2].end()) == linked);

  auto for_the_device = ProgramImage::select(&wrapper, gpu(9, 0), false);
  REQUIRE(for_the_device);
  CHECK(fatbin::read_container(sent(**for_the_device)).has_value());

  wrapper.linked_from = nullptr;
  auto alone = ProgramImage::select(&wrapper, software(), false);
  REQUIRE_FALSE(alone);
  CHECK(alone.error().result == CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_CASE("PTX text is sent with its terminating zero") {
  std::string text = "\n  " + std::string(kPtxText);
  auto image = ProgramImage::select(text.c_str(), gpu(9, 0), false);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  REQUIRE(bytes.size() == text.size() + 1);
  CHECK(bytes.back() == 0);
  CHECK(std::memcmp(bytes.data(), text.data(), text.size()) == 0);
}

TEST_CASE("A file's contents are checked for their length") {
  Bytes container = three_entries();
  auto whole = ProgramImage::select_from_file(container, gpu(7, 5));
  REQUIRE(whole);
  Bytes bytes = sent(**whole);
  CHECK(fatbin::read_container(bytes)->size() == 1);
  Bytes cut(container.begin(), container.end() - 40);
  CHECK(ProgramImage::select_from_file(cut, gpu(7, 5)).error().result == CUDA_ERROR_INVALID_IMAGE);
  CHECK(ProgramImage::select_from_file({}, gpu(7, 5)).error().result == CUDA_ERROR_INVALID_IMAGE);
  Bytes elf(64);
  std::memcpy(elf.data(), ELFMAG, SELFMAG);
  CHECK(ProgramImage::select_from_file(elf, gpu(7, 5)).error().result == CUDA_ERROR_INVALID_IMAGE);
  Bytes text(kPtxText.begin(), kPtxText.end());
  auto ptx = ProgramImage::select_from_file(text, gpu(7, 5));
  REQUIRE(ptx);
  CHECK(sent(**ptx).back() == 0);
}

TEST_CASE("Data that begin with a zero byte are no image") {
  const char nothing[8] = {};
  CHECK_FALSE(looks_like_image(nothing));
  CHECK_FALSE(looks_like_image(nullptr));
  CHECK(ProgramImage::select(nothing, software(), false).error().result == CUDA_ERROR_INVALID_IMAGE);
}

TEST_CASE("The digest is the SHA-256 of exactly the bytes that are sent") {
  Bytes container = three_entries();
  auto image = ProgramImage::select(container.data(), gpu(7, 5), true);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  ProgramImage::Digest expected{};
  unsigned length = 0;
  REQUIRE(EVP_Digest(bytes.data(), bytes.size(), expected.data(), &length, EVP_sha256(), nullptr) == 1);
  CHECK((*image)->digest() == expected);
}

TEST_CASE("An image that is kept does not depend on the program's memory, and any part of it can be read") {
  Bytes container = three_entries();
  auto image = ProgramImage::select(container.data(), gpu(7, 5), true);
  REQUIRE(image);
  Bytes bytes = sent(**image);
  std::fill(container.begin(), container.end(), 0xee);
  CHECK(sent(**image) == bytes);
  for (size_t offset = 0; offset < bytes.size(); offset += 5) {
    Bytes part(std::min<size_t>(23, bytes.size() - offset));
    (*image)->read(offset, std::as_writable_bytes(std::span(part)));
    REQUIRE(std::memcmp(part.data(), bytes.data() + offset, part.size()) == 0);
  }
}

}  // namespace gpuwire::client
