// `gpuwire info`: the server's description of itself, and measurements of the connection.
#pragma once

#include <cstdint>
#include <string>

#include <tl/expected.hpp>

#include "client_stub/session/session.hpp"

namespace gpuwire::launcher {

struct InfoOptions {
  std::string server;
  bool json = false;
  bool measure = true;  // round trips and bandwidth
  unsigned round_trips = 200;
  uint64_t bulk_bytes = 64ull << 20;  // each way, cut into pieces of kInfoPieceBytes
};
inline constexpr unsigned kRoundTripsMax = 1'000'000;
inline constexpr uint64_t kInfoBytesMax = 16ull << 30;
inline constexpr size_t kInfoPieceBytes = 16u << 20;
// The pieces in flight, so that the connection never idles between two pieces.
inline constexpr size_t kInfoPiecesAhead = 2;

struct WayFacts {
  std::string road;          // "tcp", "tls", "unix", "shm" or "rdma"
  unsigned lanes = 0;        // further connections for bulk that a session may have
  double connect_ms = 0;     // connection and handshake
  double round_trip_us = 0;  // median
  double round_trip_least_us = 0;
  double to_server_bytes_per_s = 0;
  double from_server_bytes_per_s = 0;
};

struct Info {
  client::ServerFacts server;
  WayFacts way;
  bool measured = false;
  std::string tenant;  // the server's view of the user, in the requested form: lines, or JSON; empty: none
};

// The error is the line for the user, without a prefix.
tl::expected<Info, std::string> gather_info(const InfoOptions& options);

std::string info_text(const Info& info);
std::string info_json(const Info& info);

}  // namespace gpuwire::launcher
