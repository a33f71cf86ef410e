#include "client_stub/driver/state/memory/place.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

constexpr uint64_t kDevice = 0x7000'0000'0000, kImported = kDevice + (1u << 20), kManaged = kDevice + (2u << 20);

void publish(uint64_t base, uint64_t bytes, RangeKind kind) {
  publish_range({.base = base, .bytes = bytes, .kind = kind, .device = 0, .server = &test::server_session()});
}

}  // namespace

TEST_CASE("An address is classified by the entry that holds it, and by whether all of the bytes are in it") {
  test::DeviceProcess process;
  publish(kDevice, 4096, RangeKind::device);
  publish(kManaged, 4096, RangeKind::managed);
  using enum RangeKind;
  for (RangeKind kind : {pool, mapped, variable, graph, imported}) {
    publish(kImported, 4096, kind);
    CHECK(classify(kImported + 1, 8).kind == PlaceKind::device);
  }
  const Place inside = classify(kDevice + 4000, 96), beyond = classify(kDevice + 4000, 97);
  CHECK(inside.kind == PlaceKind::device);
  CHECK(inside.whole);
  CHECK(inside.on_device());
  CHECK(inside.entry.server == &test::server_session());
  CHECK_FALSE(beyond.whole);
  CHECK(classify(kManaged, 4096).on_both_sides());
  CHECK_FALSE(classify(kManaged, 4097).on_both_sides());
  CHECK(classify(kManaged, 4097).on_device());
  const Place ordinary = classify(reinterpret_cast<uint64_t>(&process), 8);
  CHECK(ordinary.kind == PlaceKind::other);
  CHECK_FALSE(ordinary.on_device());
  CHECK_FALSE(ordinary.in_pinned());
}

TEST_CASE("Both addresses of a copy are classified as each is alone") {
  test::DeviceProcess process;
  publish(kDevice, 4096, RangeKind::device);
  publish(kManaged, 4096, RangeKind::managed);
  const auto ordinary = reinterpret_cast<uint64_t>(&process);
  const std::vector<uint64_t> addresses{kDevice, kDevice + 4095, kDevice + 4096, kManaged, 8, ordinary};
  for (uint64_t destination : addresses) {
    for (uint64_t source : addresses) {
      const Places both = classify(destination, source, 16);
      const std::pair<Place, uint64_t> sides[] = {{both.destination, destination}, {both.source, source}};
      for (const auto& [place, address] : sides) {
        const Place alone = classify(address, 16);
        CHECK(place.address == address);
        CHECK(place.bytes == 16);
        CHECK(place.kind == alone.kind);
        CHECK(place.whole == alone.whole);
        CHECK(classify_near(both.source, address, 16).kind == alone.kind);
      }
    }
  }
}

TEST_CASE("Pinned memory is a region once the device is to use it; what is checked for the device says so itself") {
  test::DeviceProcess process;
  void* memory = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&memory, 4096) == CUDA_SUCCESS);
  const auto address = reinterpret_cast<uint64_t>(memory);
  Place pinned = classify(address + 8, 64);
  CHECK(pinned.kind == PlaceKind::pinned);
  CHECK(pinned.in_pinned());
  CHECK_FALSE(pinned.on_both_sides());
  Place beyond = classify(address + 8, 8192);
  CHECK(beyond.kind == PlaceKind::pinned);
  CHECK_FALSE(beyond.in_pinned());
  bool unknown = false;
  CHECK(check_on_device(beyond, unknown) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(test::ordinal(wire::SessionOrdinal::region_create)) == 0);
  CHECK(check_on_device(pinned, unknown) == CUDA_SUCCESS);
  CHECK(process.session->count(test::ordinal(wire::SessionOrdinal::region_create)) == 1);
  CHECK_FALSE(unknown);
  CHECK(pinned.kind == PlaceKind::region);
  CHECK(pinned.on_both_sides());
  CHECK(classify(address, 64).kind == PlaceKind::region);
  CHECK(check_on_device(pinned, unknown) == CUDA_SUCCESS);
  CHECK(process.session->count(test::ordinal(wire::SessionOrdinal::region_create)) == 1);
}

TEST_CASE("The server's driver judges memory that the client does not know, and the length of imported memory") {
  test::DeviceProcess process;
  publish(kImported, 4096, RangeKind::imported);
  publish(kDevice, 4096, RangeKind::device);
  bool unknown = false;
  Place none = classify(0, 8), imported = classify(kImported + 4000, 8192);
  Place nowhere = classify(kDevice + 8192, 8), leaving = classify(kDevice, 4097);
  CHECK(check_on_device(none, unknown) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check_on_device(leaving, unknown) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(unknown);
  CHECK(check_on_device(imported, unknown) == CUDA_SUCCESS);
  CHECK(unknown);
  unknown = false;
  CHECK(check_on_device(nowhere, unknown) == CUDA_SUCCESS);
  CHECK(unknown);
}

}  // namespace gpuwire::client
