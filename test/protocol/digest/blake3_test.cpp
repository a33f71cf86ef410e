#include "protocol/digest/blake3.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace gpuwire::digest;

namespace {

std::string text_of(const Digest& digest) {
  std::string text;
  for (uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// The input of BLAKE3's published test vectors.
std::vector<std::byte> vector_input(size_t bytes) {
  std::vector<std::byte> input(bytes);
  for (size_t i = 0; i < bytes; ++i) input[i] = std::byte(i % 251);
  return input;
}

std::vector<Lanes> lanes_there() {
  std::vector<Lanes> all{Lanes::four};
  for (Lanes wider : {Lanes::eight, Lanes::sixteen})
    if (lanes_here() >= wider) all.push_back(wider);
  return all;
}

Key vector_key() {
  Key key;
  std::memcpy(key.data(), "whats the Elvish word for friend", key.size());
  return key;
}

}  // namespace

TEST_CASE("Digests are those that BLAKE3's authors have published, whatever the processor works on at once") {
  struct Known {
    size_t bytes;
    const char* digest;
  };
  const Known known[] = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
      {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
      {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
      {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
      {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
  };
  for (const Known& one : known) {
    for (Lanes lanes : lanes_there()) {
      CAPTURE(one.bytes);
      CHECK(text_of(blake3(vector_input(one.bytes), nullptr, lanes)) == one.digest);
    }
  }
}

TEST_CASE("Under a key they are BLAKE3's keyed hashes") {
  Key key = vector_key();
  for (Lanes lanes : lanes_there()) {
    CHECK(text_of(blake3({}, &key, lanes)) == "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26");
    CHECK(text_of(blake3(vector_input(1024), &key, lanes)) ==
          "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4");
  }
}

TEST_CASE("Inputs of all lengths have the same digest however many parts are worked on at once") {
  const unsigned seed = 5;
  std::mt19937 random(seed);
  Key key = vector_key();
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> input = vector_input(random() % (round < 100 ? 20'000 : 300'000));
    CAPTURE(input.size());
    for (const Key* with : {static_cast<const Key*>(nullptr), static_cast<const Key*>(&key)}) {
      Digest narrow = blake3(input, with, Lanes::four);
      for (Lanes lanes : lanes_there()) REQUIRE(blake3(input, with, lanes) == narrow);
    }
  }
}
