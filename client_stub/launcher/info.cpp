#include "client_stub/launcher/info.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "client/session_sends.hpp"
#include "client_stub/session/no_notices.hpp"
#include "client_stub/session/road.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::launcher {

namespace {

using Clock = std::chrono::steady_clock;
using client::Session;

double seconds_since(Clock::time_point begun) { return std::chrono::duration<double>(Clock::now() - begun).count(); }

CUresult ping(Session& session) { return client::send::call_ping(session, 0, {}); }

CUresult measure_round_trip(Session& session, unsigned count, WayFacts& way) {
  std::vector<double> times;
  for (unsigned i = 0; i < count; ++i) {
    auto begun = Clock::now();
    if (CUresult error = ping(session)) return error;
    times.push_back(seconds_since(begun) * 1e6);
  }
  std::sort(times.begin(), times.end());
  way.round_trip_us = times[times.size() / 2];
  way.round_trip_least_us = times.front();
  return CUDA_SUCCESS;
}

enum class Way : uint8_t { to_server, from_server };

// Sends one piece (to the server: as bulk; from it: as a request for bulk) and stores the sequence for the wait.
CUresult begin_piece(Session& session, Way way, std::vector<std::byte>& memory, size_t bytes, uint64_t& sequence) {
  CUresult error = way == Way::to_server
                       ? client::send::begin_sink(session, 0, {}, sequence, {memory.data(), bytes})
                       : client::send::begin_source(session, 0, {.bytes = bytes}, sequence, {memory.data(), bytes});
  if (!error) session.flush();
  return error;
}

// Precondition: `memory` is that of begin_piece().
CUresult finish_piece(Session& session, Way way, std::vector<std::byte>& memory, uint64_t sequence) {
  return way == Way::to_server ? client::send::finish_sink(session, sequence)
                               : client::send::finish_source(session, sequence, {memory.data(), memory.size()});
}

CUresult measure_bandwidth(Session& session, Way way, uint64_t total, double& bytes_per_s) {
  std::vector<std::byte> memory(size_t(std::min<uint64_t>(total, kInfoPieceBytes)), std::byte{1});
  std::deque<uint64_t> under_way;
  auto begun = Clock::now();
  for (uint64_t sent = 0; sent < total || !under_way.empty();) {
    if (sent < total && under_way.size() < kInfoPiecesAhead) {
      size_t bytes = size_t(std::min<uint64_t>(total - sent, memory.size()));
      if (CUresult error = begin_piece(session, way, memory, bytes, under_way.emplace_back())) return error;
      sent += bytes;
      continue;
    }
    if (CUresult error = finish_piece(session, way, memory, under_way.front())) return error;
    under_way.pop_front();
  }
  bytes_per_s = double(total) / seconds_since(begun);
  return CUDA_SUCCESS;
}

CUresult measure(Session& session, const InfoOptions& options, WayFacts& way) {
  if (CUresult error = measure_round_trip(session, options.round_trips, way)) return error;
  // The first megabytes open the connection's window and are not counted.
  double ignored;
  uint64_t first = std::min<uint64_t>(options.bulk_bytes, 4u << 20);
  for (auto [direction, bandwidth] :
       {std::pair{Way::to_server, &way.to_server_bytes_per_s}, {Way::from_server, &way.from_server_bytes_per_s}}) {
    if (CUresult error = measure_bandwidth(session, direction, first, ignored)) return error;
    if (CUresult error = measure_bandwidth(session, direction, options.bulk_bytes, *bandwidth)) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

tl::expected<Info, std::string> gather_info(const InfoOptions& options) {
  client::NoNotices notices;
  std::unique_ptr<Session> session;
  std::string error;
  auto begun = Clock::now();
  if (Session::connect(options.server, notices, session, error) != CUDA_SUCCESS) return tl::unexpected(error);
  Info info;
  info.way.connect_ms = seconds_since(begun) * 1e3;
  info.server = session->facts();
  if (client::Road* road = client::road_of(*session)) {
    info.way.road = road->road_name();
    info.way.lanes = road->lanes().most;
  }
  if (options.measure) {
    if (CUresult failed = measure(*session, options, info.way))
      return tl::unexpected(fmt::format("{}: measuring failed with CUDA error {}", options.server, int(failed)));
    info.measured = true;
  }
  return info;
}

}  // namespace gpuwire::launcher
