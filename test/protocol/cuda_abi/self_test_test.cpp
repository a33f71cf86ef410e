#include "protocol/cuda_abi/self_test.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace {

using namespace gpuwire::cuda_abi;

std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string hex(const std::array<uint8_t, 16>& bytes) {
  std::string out;
  for (const uint8_t byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

SelfTestDevice device_counting_from(uint8_t first, int32_t domain, int32_t bus, int32_t device) {
  SelfTestDevice out{.pci_domain = domain, .pci_bus = bus, .pci_device = device};
  for (uint8_t& byte : out.uuid) {
    byte = first++;
  }
  return out;
}

SelfTestQuestion sample_question(std::span<const SelfTestDevice> devices) {
  return {.driver_version = 13000,
          .version = 13002,
          .process_id = 4242,
          .thread_id = 0x89ABCDEF,
          .cudart_interface_table = 0x7F0011223344,
          .integrity_table = 0x7F0055667788,
          .integrity_function = 0x7F0099AABBCC,
          .unix_seconds = 1700000000,
          .devices = devices};
}

}  // namespace

TEST_CASE("MD2 gives the digests of RFC 1319, appendix A.5") {
  CHECK(hex(md2(bytes_of(""))) == "8350e5a3e24c153df2275c9f80692773");
  CHECK(hex(md2(bytes_of("a"))) == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(hex(md2(bytes_of("abc"))) == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(hex(md2(bytes_of("message digest"))) == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(hex(md2(bytes_of("abcdefghijklmnopqrstuvwxyz"))) == "4e8ddff3650292ab5a4108c3aa47940b");
  CHECK(hex(md2(bytes_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"))) ==
        "da33def2a42df13975352846c30338cd");
  CHECK(hex(md2(bytes_of("12345678901234567890123456789012345678901234567890123456789012345678901234567890"))) ==
        "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST_CASE("HMAC-MD2 agrees with an independent implementation") {
  std::array<uint8_t, 16> key{};
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<uint8_t>(i);
  }
  CHECK(hex(hmac_md2(key, bytes_of("what do ya want for nothing?"))) == "022f90a619e88463118324aa4749d100");
}

TEST_CASE("The answer is the digest of the question's fields and every device in order") {
  const SelfTestDevice devices[] = {device_counting_from(0x10, 1, 2, 3), device_counting_from(0x80, 0, 0x65, 4)};
  CHECK(self_test_answer(sample_question({devices, 1})) ==
        std::array<uint64_t, 2>{0xD40255D3BE1E0353, 0x7C39845BBCFB9763});
  CHECK(self_test_answer(sample_question({devices, 2})) ==
        std::array<uint64_t, 2>{0x004A3D723618840C, 0x18D2F03F1DAE053D});
}

TEST_CASE("Questions whose version ends in 0 or 1 have constant answers") {
  SelfTestQuestion question = sample_question({});
  question.version = 13000;
  CHECK(self_test_answer(question) == std::array<uint64_t, 2>{0x3341181C03CB675C, 0x8ED383AA1F4CD1E8});
  question.version = 13001;
  CHECK(self_test_answer(question) == std::array<uint64_t, 2>{0x1841181C03CB675C, 0x8ED383AA1F4CD1E8});
}
