#include "client_stub/driver/state/profile/gpu_spans.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "client/session_sends.hpp"
#include "client_stub/driver/process/clock.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/process/profile_file.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "wire/session_ordinals.hpp"

namespace gpuwire::client {

namespace {

constexpr unsigned kPollsAtStart = 9, kPollsAtEnd = 3;  // at the server's clock; the quickest counts
constexpr size_t kArgumentsBytes = 512;

struct Kind {
  const char* category;
  bool has_bytes;
};
constexpr Kind kSpanKinds[] = {{"kernel", false}, {"copy", true}, {"memset", true}, {"graph", false}};
constexpr uint32_t kMethod = 4;  // no work: its name describes the measurement

// Demangles a C++ compiler's name.
std::string plain_name(const std::string& name) {
  if (!name.starts_with("_Z")) return name;
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                               &std::free);
  if (status != 0 || !plain) return name;
  return std::string(plain.get()).substr(0, GpuSpans::kNameBytesMax);
}

}  // namespace

ClockOffset clock_offset(uint64_t before_ns, uint64_t server_ns, uint64_t after_ns, bool same_machine) noexcept {
  const uint64_t half = after_ns > before_ns ? (after_ns - before_ns) / 2 : 0;
  const auto offset = int64_t(before_ns + half - server_ns);  // wraps for a clock that is far away, and back again
  const auto distance = uint64_t(offset < 0 ? -uint64_t(offset) : uint64_t(offset));
  if (same_machine && distance <= half) return {};
  return {offset, half};
}

bool GpuSpans::read_clock(Session& connection, ClockOffset& best, unsigned looks) noexcept {
  bool seen = false;
  for (unsigned i = 0; i < looks; ++i) {
    uint64_t server_ns = 0;
    const uint64_t before = monotonic_ns();
    const CUresult result = send::call_profile_clock(
        connection, 0, {}, [&](schema::ProfileClockReply::Reader reply) { server_ns = reply.getNowNs(); });
    const uint64_t after = monotonic_ns();
    if (result != CUDA_SUCCESS) return false;
    const ClockOffset sample = clock_offset(before, server_ns, after, connection.facts().same_machine);
    if (!seen || sample.error_ns < best.error_ns) best = sample;
    seen = true;
  }
  return seen;
}

void GpuSpans::begin() noexcept {
  if (!profile_file().is_open()) return;
  Session& connection = session_.connection();
  if (!connection.facts().knows(uint32_t(wire::SessionOrdinal::profile_begin))) {
    log_stderr("the server is too old to time work on the GPU: the profile contains only the program's calls");
    return;
  }
  if (!read_clock(connection, offset_, kPollsAtStart)) return;
  wanted_ = true;
  const CUresult result = send::call_profile_begin(connection, 0, {}, [](schema::ProfileClockReply::Reader) {});
  if (result != CUDA_SUCCESS)
    log_stderr("the server does not time work on the GPU: the profile contains only the program's calls");
  write_totals("gpuwire clocks at the beginning", 0, 0, 0);
}

void GpuSpans::finish() noexcept {
  if (!wanted_ || session_.connection().state() != CUDA_SUCCESS) return;
  uint64_t timed = 0, dropped = 0, error_ns = 0;
  const CUresult result =
      send::call_profile_end(session_.connection(), 0, {}, [&](schema::ProfileEndReply::Reader reply) {
        timed = reply.getTimed();
        dropped = reply.getDropped();
        error_ns = reply.getErrorNs();
      });
  if (result != CUDA_SUCCESS) return;
  const ClockOffset begun = offset_;
  ClockOffset now;
  if (read_clock(session_.connection(), now, kPollsAtEnd)) {
    // The drift of the two clocks since then counts as an error of the first comparison.
    const int64_t moved = now.ns - begun.ns;
    offset_.error_ns = std::max<uint64_t>(begun.error_ns, uint64_t(moved < 0 ? -moved : moved) + now.error_ns);
  }
  write_totals("gpuwire clocks at the end", timed, dropped, error_ns);
  if (dropped == 0) return;
  char line[160];
  std::snprintf(line, sizeof line, "the profile lacks the times of %llu pieces of work on the GPU (it has %llu)",
                static_cast<unsigned long long>(dropped), static_cast<unsigned long long>(timed));
  log_stderr(line);
}

void GpuSpans::write_totals(const char* what, uint64_t timed, uint64_t dropped, uint64_t gpu_error_ns) noexcept {
  char text[kArgumentsBytes];
  const int length = std::snprintf(
      text, sizeof text,
      R"("ph":"M","name":"%s","pid":%)" PRIu64 R"(,"args":{"offset_ns":%)" PRId64 R"(,"error_ns":%)" PRIu64
      R"(,"gpu_error_ns":%)" PRIu64 R"(,"timed":%)" PRIu64 R"(,"dropped":%)" PRIu64 "}",
      what, gpu_process_number(), offset_.ns, offset_.error_ns, gpu_error_ns, timed, dropped);
  if (length > 0 && size_t(length) < sizeof text) profile_file().event({text, size_t(length)});
}

void GpuSpans::take_names(const schema::ProfileSpans::Reader& spans) {
  if (spans.getFirstName() != names_.size()) return;  // received already, or out of order
  for (auto name : spans.getNames()) {
    if (names_.size() >= kNamesMax) return;
    std::string text(name.begin(), std::min(name.size(), kNameBytesMax));
    if (name_bytes_ + text.size() > kNamesBytesMax) text = "(one name too many)";
    else text = plain_name(text);
    text = json_text(text);
    name_bytes_ += text.size();
    names_.push_back(std::move(text));
  }
}

// Each stream has a track, which is named at its first use.
size_t GpuSpans::track_of(const Track& track) {
  if (auto found = tracks_.find(track); found != tracks_.end()) return found->second;
  if (tracks_.size() >= kTracksMax) return 0;
  const size_t number = tracks_.size() + 1;
  tracks_.emplace(track, number);
  char name[96];
  const auto [context, stream] = track;
  if (stream == 0) std::snprintf(name, sizeof name, "context %#" PRIx32 ", default stream", context);
  else if (stream == ~0ull) std::snprintf(name, sizeof name, "context %#" PRIx32 ", the server's own streams", context);
  else std::snprintf(name, sizeof name, "context %#" PRIx32 ", stream %#" PRIx64, context, stream);
  char text[256];
  const int length = std::snprintf(
      text, sizeof text, R"("ph":"M","name":"thread_name","pid":%)" PRIu64 R"(,"tid":%zu,"args":{"name":"%s"})",
      gpu_process_number(), number, name);
  if (length > 0 && size_t(length) < sizeof text) profile_file().event({text, size_t(length)});
  return number;
}

// A label of the process that has the GPU's tracks: viewers show it beside the process's name.
void GpuSpans::write_method(const std::string& name) {
  std::string event = R"("ph":"M","name":"process_labels","pid":)";
  event += std::to_string(gpu_process_number());
  event += R"(,"args":{"labels":"measured by: )";
  event += name;
  event += "\"}";
  profile_file().event(event);
}

void GpuSpans::write(const schema::ProfileSpan::Reader& span, uint64_t now_ns) {
  if (span.getKind() == kMethod && span.getName() < names_.size()) return write_method(names_[span.getName()]);
  const uint64_t start = span.getStartNs() + uint64_t(offset_.ns), end = span.getEndNs() + uint64_t(offset_.ns);
  if (span.getKind() >= std::size(kSpanKinds) || span.getName() >= names_.size() || end < start ||
      end > now_ns + kAheadNsMax)
    return;
  const Kind& kind = kSpanKinds[span.getKind()];
  const size_t track = track_of({span.getContext(), span.getStream()});
  char bytes[48] = "";
  if (kind.has_bytes && span.getBytes() != 0)
    std::snprintf(bytes, sizeof bytes, R"(,"bytes":%)" PRIu64, span.getBytes());
  char text[kArgumentsBytes];
  const int length =
      std::snprintf(text, sizeof text,
                    R"(","ts":%)" PRIu64
                    ".%03u"
                    R"(,"dur":%)" PRIu64
                    ".%03u"
                    R"(,"pid":%)" PRIu64 R"(,"tid":%zu,"args":{"stream":"%#)" PRIx64 R"(","context":"%#)" PRIx32
                    R"(","frame":%)" PRIu64 "%s}",
                    start / 1000, unsigned(start % 1000), (end - start) / 1000, unsigned((end - start) % 1000),
                    gpu_process_number(), track, span.getStream(), span.getContext(), span.getSequence(), bytes);
  if (length <= 0 || size_t(length) >= sizeof text) return;
  std::string event = R"("ph":"X","cat":")";
  event += kind.category;
  event += R"(","name":")";
  event += names_[span.getName()];
  event.append(text, size_t(length));
  profile_file().event(event);
}

void GpuSpans::told(const schema::ProfileSpans::Reader& spans) {
  if (!wanted_) return;
  take_names(spans);
  const uint64_t now = monotonic_ns();
  for (auto span : spans.getSpans()) write(span, now);
}

}  // namespace gpuwire::client
