// The server's side of a management query: a client's message is checked before a library function gets any of it.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>

#include "nvml/sizes.hpp"
#include "protocol/wire/limits.hpp"
#include "server/management/replay_support.hpp"
#include "server/replay/replay.hpp"

using namespace gpuwire;
using namespace gpuwire::nvml;

namespace {

int g_marker[2];
const nvmlDevice kDevices[] = {reinterpret_cast<nvmlDevice>(&g_marker[0]), reinterpret_cast<nvmlDevice>(&g_marker[1])};

// Returns the ordinal of a function of protocol/nvml.
uint32_t ordinal_of(int (*Table::*function)(nvmlDevice, unsigned, unsigned*), const Table& table) {
  // Finds the ordinal by the called function, since the description may renumber functions.
  for (uint32_t i = 0; i < query_functions().size(); ++i) {
    if (!query_functions()[i]) continue;
    static bool called;
    called = false;
    Table own = table;
    own.*function = [](nvmlDevice, unsigned, unsigned*) {
      called = true;
      return int(kSuccess);
    };
    std::string bytes(8, '\0');
    Arguments in(bytes, kDevices);
    Values out;
    try {
      query_functions()[i](own, in, out);
    } catch (const server::ProtocolFault&) {}
    if (called) return i;
  }
  return 0;
}

template <class... Numbers>
std::string packed(Numbers... numbers) {
  std::string out;
  (out.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return out;
}

}  // namespace

TEST_CASE("A query reaches the library with the device it names, and brings back what it wrote") {
  Table table;
  uint32_t ordinal = ordinal_of(&Table::nvmlDeviceGetTemperature, table);
  REQUIRE(ordinal != 0);
  table.nvmlDeviceGetTemperature = [](nvmlDevice device, unsigned sensor, unsigned* out) {
    *out = device == kDevices[1] && sensor == 7 ? 42 : 0;
    return int(kSuccess);
  };
  std::string bytes = packed(1u, 7u);
  Arguments in(bytes, kDevices);
  Values out;
  CHECK(query_functions()[ordinal](table, in, out) == kSuccess);
  CHECK(out.all() == packed(42u));
}

TEST_CASE("A function that the library lacks says so, and gives no values") {
  Table table;
  uint32_t ordinal = ordinal_of(&Table::nvmlDeviceGetTemperature, table);
  std::string bytes = packed(0u, 0u);
  Arguments in(bytes, kDevices);
  Values out;
  CHECK(query_functions()[ordinal](table, in, out) == kFunctionNotFound);
  CHECK(out.all().empty());
}

TEST_CASE("Arguments that cannot be end the session") {
  uint32_t ordinal = ordinal_of(&Table::nvmlDeviceGetTemperature, Table{});
  for (const std::string& bytes : {std::string(), packed(0u), packed(0u, 0u, 0u), packed(2u, 0u), packed(~0u, 0u)}) {
    Arguments in(bytes, kDevices);
    Values out;
    CHECK_THROWS_AS(query_functions()[ordinal](Table{}, in, out), server::ProtocolFault);
  }
}

TEST_CASE("Lengths and counts are cut to the limits, structures of unknown versions and long texts are refused") {
  Arguments none({}, kDevices);
  unsigned room = ~0u, items = ~0u;
  CHECK(none.text_room(room).bytes() == wire::kManagementTextBytesMax);
  CHECK(room == wire::kManagementTextBytesMax);
  CHECK(none.room(true, items, 16).bytes() == size_t(wire::kManagementItemsMax) * 16);
  CHECK(items == wire::kManagementItemsMax);
  CHECK(none.room(false, items, 16).data() == nullptr);

  std::string many = packed(wire::kManagementItemsMax + 1);
  CHECK_THROWS_AS(Arguments(many, kDevices).count(), server::ProtocolFault);
  std::string text = packed(100u) + "short";
  CHECK_THROWS_AS(Arguments(text, kDevices).text(), server::ProtocolFault);
  std::string version = packed(sizes::nvmlMemory_v2 + 1) + std::string(64, '\0');
  CHECK_THROWS_AS(Arguments(version, kDevices).versioned({sizes::nvmlMemory_v2}), server::ProtocolFault);
  std::string short_one = packed(sizes::nvmlMemory_v2);
  CHECK_THROWS_AS(Arguments(short_one, kDevices).versioned({sizes::nvmlMemory_v2}), server::ProtocolFault);
  for (int count : {0, -1, int(wire::kManagementItemsMax) + 1})
    CHECK_THROWS_AS(Arguments(text, kDevices).items(count, 40), server::ProtocolFault);
}

TEST_CASE("A text without its end does not run over, and items that the library claims beyond its room are not sent") {
  Buffer text(8);
  std::memset(text.data(), 'x', 8);
  Values out;
  out.text(text);
  CHECK(out.all() == packed(7u) + "xxxxxxx");
  Buffer items(3 * 16);
  Values few;
  few.items(items, 1000u, 16);
  CHECK(few.all() == packed(3u) + std::string(48, '\0'));
}

TEST_CASE("Random arguments to every function end in an answer or in a refusal") {
  constexpr unsigned kSeed = 20261121, kRounds = 200;
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Table table;
  table.missing = kSuccess;  // as if the library had answered with zeros: all results are serialised
  unsigned answered = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    for (QueryFunction function : query_functions()) {
      if (!function) continue;
      std::string bytes(random() % 64, '\0');
      for (char& byte : bytes) byte = random() % 3 ? char(0) : char(random());
      Arguments in(bytes, kDevices);
      Values out;
      try {
        answered += function(table, in, out) == kSuccess;
      } catch (const server::ProtocolFault& fault) {
        REQUIRE(!fault.reason.empty());
      }
    }
  }
  CHECK(answered > 100);
}
