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
  // Round trips and bandwidth.
  bool measure = true;
  unsigned round_trips = 200;
  // Each way, cut into pieces of kInfoPieceBytes.
  uint64_t bulk_bytes = 64ull << 20;
};
inline constexpr unsigned kRoundTripsMax = 1'000'000;
inline constexpr uint64_t kInfoBytesMax = 16ull << 30;
inline constexpr size_t kInfoPieceBytes = 16u << 20;
// The pieces in flight, so that the connection never idles between two pieces.
inline constexpr size_t kInfoPiecesAhead = 2;

struct WayFacts {
  // "tcp", "tls", "unix", "shm" or "rdma".
  std::string road;
  // Further connections for bulk that a session may have.
  unsigned lanes = 0;
  // Connection and handshake.
  double connect_ms = 0;
  // Median.
  double round_trip_us = 0;
  double round_trip_least_us = 0;
  double to_server_bytes_per_s = 0;
  double from_server_bytes_per_s = 0;
};

struct Info {
  client::ServerFacts server;
  WayFacts way;
  bool measured = false;
  // The server's view of the user, in the requested form: lines, or JSON; empty: none.
  std::string tenant;
};

// The error is the line for the user, without a prefix.
tl::expected<Info, std::string> gather_info(const InfoOptions& options);

std::string info_text(const Info& info);
std::string info_json(const Info& info);

}  // namespace gpuwire::launcher
