#include <doctest/doctest.h>

#include <poll.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

#include "client_stub/launcher/info.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/wire/message_reader.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/session/fake_server.hpp"

using namespace gpuwire;

namespace {

void serve_measurements(test::FakeServer& server) {
  while (server.next()) {
    uint64_t sequence = server.header().sequence;
    auto ordinal = wire::SessionOrdinal(server.header().ordinal);
    std::vector<std::byte> bulk;
    if (ordinal == wire::SessionOrdinal::source) {
      wire::SegmentReader message(server.message());
      bulk.resize(message.getRoot<schema::Source>().getBytes());
    }
    server.skip_bulk();
    server.reply(sequence, 0, bulk);
  }
}

}  // namespace

TEST_CASE("info shows lines that move no cursor and turn nowhere, whatever names the server gives") {
  launcher::Info info;
  info.server = {.address = "host:1", .release = "1\x1b[2J", .driver_name = "driver\n\u202efake"};
  info.server.devices.push_back({.name = "GPU\u2028\x1b]0;title\x07", .pci_bus_id = "0\u2066"});
  for (const std::string& text : {info_text(info), info_json(info)}) {
    for (const char* harmful : {"\x1b", "\x07", "\u202e", "\u2028", "\u2066", "\\u001b"})
      CHECK(text.find(harmful) == std::string::npos);
    CHECK(text.find("GPU") != std::string::npos);
  }
  CHECK(info_text(info).find("driver ") != std::string::npos);
}

TEST_CASE("info tells what the server says and measures the way to it") {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  std::unique_ptr<test::FakeServer> server;
  std::thread accepting([&] {
    pollfd ready{(*listener)->descriptor(), POLLIN, 0};
    poll(&ready, 1, 120'000);
    server = std::make_unique<test::FakeServer>(transport::adopt_stream((*listener)->accept().descriptor),
                                                serve_measurements);
  });
  std::string address = "127.0.0.1:" + std::to_string((*listener)->endpoint().port);
  auto info = launcher::gather_info({.server = address, .round_trips = 5, .bulk_bytes = (3u << 20) + 1});
  accepting.join();
  REQUIRE(info);
  CHECK(info->measured);
  CHECK(info->way.round_trip_us > 0);
  CHECK(info->way.round_trip_us >= info->way.round_trip_least_us);
  CHECK(info->way.to_server_bytes_per_s > 0);
  CHECK(info->way.from_server_bytes_per_s > 0);

  std::string text = info_text(*info);
  for (const std::string& part :
       {address, std::string("fake driver"), std::string("CUDA 13.0"), std::string("first fake device"),
        std::string("round trip"), std::string("GB/s to the server")})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);

  auto json = nlohmann::json::parse(info_json(*info));
  CHECK(json["server"]["address"] == address);
  CHECK(json["devices"].size() == 2);
  CHECK(json["devices"][0]["name"] == "first fake device");
  CHECK(json["devices"][0]["uuid"] == "GPU-00000000-0000-0000-0000-000000000000");
  CHECK(json["round_trip_us"] == info->way.round_trip_us);
}

TEST_CASE("an unreachable server is an error with the address in it") {
  setenv("GPUWIRE_CONNECT_PATIENCE", "0s", 1);
  auto info = launcher::gather_info({.server = "127.0.0.1:1"});
  REQUIRE_FALSE(info);
  CHECK(info.error().find("127.0.0.1:1: ") == 0);
}
