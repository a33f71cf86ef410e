// The times of a session's work on the GPU: the client requests them when the session begins, the server sends them in
// notices, and the client writes them into the profile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

class Session;
class ServerSession;

// The offset of the server's clock: the value to add to its times.
struct ClockOffset {
  int64_t ns = 0;
  // It may be wrong by as much.
  uint64_t error_ns = 0;
};
// Computes the offset from one reading of the server's clock between two of the client's. If both seem to be one clock,
// the offset is 0.
ClockOffset clock_offset(uint64_t before_ns, uint64_t server_ns, uint64_t after_ns, bool same_machine) noexcept;

class GpuSpans final : public SessionPart {
 public:
  // Bounds of the memory that a server may make the client use.
  static constexpr size_t kNamesMax = 64 * 1024;
  static constexpr size_t kNamesBytesMax = 32 << 20;
  static constexpr size_t kNameBytesMax = 4096;
  // Streams; further streams share one track.
  static constexpr size_t kTracksMax = 16 * 1024;
  // A span cannot end later than now, except for the clocks' difference.
  static constexpr uint64_t kAheadNsMax = 60'000'000'000;

  GpuSpans(ServerSession& session, SessionParts& parts) noexcept : SessionPart(parts), session_(session) {}

  // Begins if a profile is being written. Precondition: the session has made no call. Costs some round trips.
  void begin() noexcept;
  // Takes the remaining spans. Precondition: the program ends, and the session still lives. Costs some round trips.
  void finish() noexcept;

  // A notice. Thread: the reading one. Invalid parts are ignored.
  void told(const schema::ProfileSpans::Reader& spans);

  void ended(SessionEnd) noexcept override {}
  // A child has no session and reads nothing.
  void after_fork_in_child() noexcept override {}

 private:
  // Context, stream.
  using Track = std::pair<uint32_t, uint64_t>;

  bool read_clock(Session& connection, ClockOffset& best, unsigned looks) noexcept;
  void take_names(const schema::ProfileSpans::Reader& spans);
  void write(const schema::ProfileSpan::Reader& span, uint64_t now_ns);
  void write_method(const std::string& name);
  size_t track_of(const Track& track);
  void write_totals(const char* what, uint64_t timed, uint64_t dropped, uint64_t gpu_error_ns) noexcept;

  ServerSession& session_;
  // Set by begin(), before there can be notices.
  bool wanted_ = false;
  // Likewise.
  ClockOffset offset_;
  // On the reading thread; the role changes between threads, one at a time, with a lock between them.
  std::vector<std::string> names_;
  size_t name_bytes_ = 0;
  std::map<Track, size_t> tracks_;
};

}  // namespace gpuwire::client
