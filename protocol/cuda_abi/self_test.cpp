#include "protocol/cuda_abi/self_test.hpp"

#include <cstring>
#include <vector>

namespace gpuwire::cuda_abi {
namespace {

constexpr size_t kBlockBytes = 16;
constexpr int kRounds = 18;

// For a question whose version ends in 0 or 1, the answer is a constant.
constexpr std::array<uint64_t, 2> kAnswerEndingIn0{0x3341181C03CB675C, 0x8ED383AA1F4CD1E8};
constexpr std::array<uint64_t, 2> kAnswerEndingIn1{0x1841181C03CB675C, 0x8ED383AA1F4CD1E8};
constexpr std::array<uint8_t, 16> kKey{0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52,
                                       0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F};

// RFC 1319, section 3.2: a permutation of the bytes, constructed from the digits of pi.
constexpr std::array<uint8_t, 256> kPi{
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243, 192, 199,
    115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,  103, 66,  111, 24,
    138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142, 187, 47,  238, 122, 169, 104,
    121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,  128, 127, 93,  154, 90,  144, 50,  39,
    53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179, 72,  165, 181, 209, 215, 94,  146, 42,  172, 86,
    170, 198, 79,  184, 56,  210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,
    100, 113, 135, 32,  134, 91,  207, 101, 230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,
    97,  105, 52,  64,  126, 15,  85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,
    44,  83,  13,  110, 133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193,
    171, 250, 36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,  49,  68,
    80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20};

template <typename T>
void append(std::vector<uint8_t>& out, const T& value) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

std::vector<uint8_t> serialise(const SelfTestQuestion& question) {
  std::vector<uint8_t> message;
  append(message, question.driver_version);
  append(message, question.version);
  append(message, question.process_id);
  append(message, question.thread_id);
  append(message, question.cudart_interface_table);
  append(message, question.integrity_table);
  append(message, question.integrity_function);
  append(message, question.unix_seconds);
  for (const SelfTestDevice& device : question.devices) {
    append(message, device.uuid);
    append(message, device.pci_domain);
    append(message, device.pci_bus);
    append(message, device.pci_device);
  }
  return message;
}

}  // namespace

std::array<uint8_t, 16> md2(std::span<const uint8_t> message) {
  std::vector<uint8_t> padded(message.begin(), message.end());
  const size_t pad = kBlockBytes - padded.size() % kBlockBytes;
  padded.insert(padded.end(), pad, static_cast<uint8_t>(pad));

  std::array<uint8_t, kBlockBytes> checksum{};
  uint8_t last = 0;
  for (size_t block = 0; block < padded.size(); block += kBlockBytes) {
    for (size_t i = 0; i < kBlockBytes; ++i) {
      last = checksum[i] ^= kPi[padded[block + i] ^ last];
    }
  }
  padded.insert(padded.end(), checksum.begin(), checksum.end());

  std::array<uint8_t, 3 * kBlockBytes> state{};
  for (size_t block = 0; block < padded.size(); block += kBlockBytes) {
    for (size_t i = 0; i < kBlockBytes; ++i) {
      state[kBlockBytes + i] = padded[block + i];
      state[2 * kBlockBytes + i] = padded[block + i] ^ state[i];
    }
    uint8_t carry = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (uint8_t& byte : state) {
        carry = byte ^= kPi[carry];
      }
      carry = static_cast<uint8_t>(carry + round);
    }
  }
  std::array<uint8_t, 16> digest{};
  std::memcpy(digest.data(), state.data(), digest.size());
  return digest;
}

std::array<uint8_t, 16> hmac_md2(std::span<const uint8_t, 16> key, std::span<const uint8_t> message) {
  std::vector<uint8_t> inner, outer;
  for (const uint8_t byte : key) {
    inner.push_back(byte ^ 0x36);
    outer.push_back(byte ^ 0x5C);
  }
  inner.insert(inner.end(), message.begin(), message.end());
  const auto inner_digest = md2(inner);
  outer.insert(outer.end(), inner_digest.begin(), inner_digest.end());
  return md2(outer);
}

std::array<uint64_t, 2> self_test_answer(const SelfTestQuestion& question) {
  switch (question.version % 10) {
    case 0: return kAnswerEndingIn0;
    case 1: return kAnswerEndingIn1;
    default: break;
  }
  const auto digest = hmac_md2(kKey, serialise(question));
  std::array<uint64_t, 2> words{};
  std::memcpy(words.data(), digest.data(), sizeof words);
  return words;
}

}  // namespace gpuwire::cuda_abi
