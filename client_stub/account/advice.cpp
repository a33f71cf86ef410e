#include "client_stub/account/advice.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

namespace gpuwire::client {

namespace {

// A smaller part of the program's time than this is not worth a change.
constexpr double kShareMin = 0.03;
// From this share on, the program counts as bound by the GPU.
constexpr double kGpuBoundShare = 0.8;
// From this number of bytes per wait on, the bytes determine the time of a call.
constexpr uint64_t kBulkBytes = 64 << 10;
constexpr size_t kCallsShown = 3;
constexpr size_t kChangesShown = 2;

// --- the kinds of calls that wait, and the remedy for each ---------------------------------------------------------

// Rows of kKinds.
enum class Kind : uint8_t {
  upload,
  upload_async,
  download,
  download_async,
  copy,
  synchronise,
  poll,
  launch,
  allocate,
  pin,
  load,
  start,
  occupancy,
  ask,
};

struct KindFacts {
  // The other causes of the wait, which a change of the call does not remove: earlier work on the GPU and other
  // tenants' turns; the server's earlier work.
  bool awaits_gpu, awaits_server;
  const char* pageable;  // the change if most waits were for pageable memory; null: the same
  const char* change;
};

constexpr KindFacts kKinds[] = {
    /* upload */
    {true, false, "use pinned memory and cudaMemcpyAsync, which waits for nothing, or fewer and larger copies",
     "use cudaMemcpyAsync, which waits for nothing, or fewer and larger copies"},
    /* upload_async */
    {true, false,
     "use pinned memory (cudaMallocHost; pin_memory=True), from which a copy of any size waits for nothing",
     "copy less often, or less"},
    /* download */
    {true, true, "read results less often or several at once, or with cudaMemcpyAsync into pinned memory",
     "read results less often or several at once, or with cudaMemcpyAsync and one synchronisation"},
    /* download_async */
    {true, true, "use pinned memory for results, into which a copy waits for nothing, or read them less often",
     "read results less often or several at once"},
    /* copy */
    {true, false, "use pinned memory and the asynchronous form, or fewer and larger copies",
     "use the asynchronous form, or fewer and larger copies"},
    /* synchronise */
    {true, true, nullptr, "synchronise less often: calls of a stream are in order without it"},
    /* poll */
    {true, true, nullptr, "ask less often, or wait with cudaEventSynchronize"},
    /* launch */
    {true, true, nullptr, "unset CUDA_LAUNCH_BLOCKING, which makes each launch wait"},
    /* allocate */
    {false, false, nullptr, "allocate once and use the memory again, or use an allocator that caches"},
    /* pin */
    {false, false, nullptr, "pin memory once and use it again"},
    /* load */
    {false, false, nullptr,
     "it is paid once for each kernel: let the process live longer, or give the server a key to keep code by "
     "(GPUWIRE_CACHE_KEY_FILE)"},
    /* start */
    {false, false, nullptr, "it is connecting, and the queue for a GPU if there was one: let the process live longer"},
    /* occupancy */
    {false, false, nullptr,
     "libraries learn the card in this way: the user's next program asks all at once, unless GPUWIRE_LOOK_AHEAD is "
     "off or there is no key to keep code by (GPUWIRE_CACHE_KEY_FILE)"},
    /* ask */
    {false, false, nullptr, "ask once and keep the answer"},
};
static_assert(std::size(kKinds) == size_t(Kind::ask) + 1);

// Driver functions without their suffixes (_v2, _ptds, _ptsz), under the names that programs know them by. A function
// that is missing here is Kind::ask under its own name.
struct CallFacts {
  std::string_view stem;
  const char* shown;
  Kind kind;
};

constexpr CallFacts kCalls[] = {
    {"cuMemcpyHtoD", "cudaMemcpy to the device", Kind::upload},
    {"cuMemcpyHtoDAsync", "cudaMemcpyAsync to the device", Kind::upload_async},
    {"cuMemcpyDtoH", "cudaMemcpy from the device", Kind::download},
    {"cuMemcpyDtoHAsync", "cudaMemcpyAsync from the device", Kind::download_async},
    {"cuMemcpy", "cudaMemcpy", Kind::copy},
    {"cuMemcpyAsync", "cudaMemcpyAsync", Kind::copy},
    {"cuMemcpy2D", "cudaMemcpy2D", Kind::copy},
    {"cuMemcpy2DUnaligned", "cudaMemcpy2D", Kind::copy},
    {"cuMemcpy2DAsync", "cudaMemcpy2DAsync", Kind::copy},
    {"cuMemcpy3D", "cudaMemcpy3D", Kind::copy},
    {"cuMemcpy3DAsync", "cudaMemcpy3DAsync", Kind::copy},
    {"cuMemcpyAtoH", "cudaMemcpy2DFromArray", Kind::download},
    {"cuMemcpyHtoA", "cudaMemcpy2DToArray", Kind::upload},
    {"cuCtxSynchronize", "cudaDeviceSynchronize", Kind::synchronise},
    {"cuStreamSynchronize", "cudaStreamSynchronize", Kind::synchronise},
    {"cuEventSynchronize", "cudaEventSynchronize", Kind::synchronise},
    {"cuEventQuery", "cudaEventQuery", Kind::poll},
    {"cuStreamQuery", "cudaStreamQuery", Kind::poll},
    {"cuLaunchKernel", "launches", Kind::launch},
    {"cuLaunchKernelEx", "launches", Kind::launch},
    {"cuLaunchCooperativeKernel", "launches", Kind::launch},
    {"cuMemAlloc", "cudaMalloc", Kind::allocate},
    {"cuMemAllocPitch", "cudaMallocPitch", Kind::allocate},
    {"cuMemAllocManaged", "cudaMallocManaged", Kind::allocate},
    {"cuMemAllocAsync", "cudaMallocAsync", Kind::allocate},
    {"cuMemAllocFromPoolAsync", "cudaMallocFromPoolAsync", Kind::allocate},
    {"cuMemFree", "cudaFree", Kind::allocate},
    {"cuMemFreeAsync", "cudaFreeAsync", Kind::allocate},
    {"cuMemCreate", "cuMemCreate", Kind::allocate},
    {"cuMemAllocHost", "cudaMallocHost", Kind::pin},
    {"cuMemHostAlloc", "cudaHostAlloc", Kind::pin},
    {"cuMemHostRegister", "cudaHostRegister", Kind::pin},
    {"cuMemFreeHost", "cudaFreeHost", Kind::pin},
    {"cuMemHostUnregister", "cudaHostUnregister", Kind::pin},
    {"cuModuleLoadData", "loading modules", Kind::load},
    {"cuModuleLoadDataEx", "loading modules", Kind::load},
    {"cuModuleLoad", "loading modules", Kind::load},
    {"cuModuleLoadFatBinary", "loading modules", Kind::load},
    {"cuModuleGetFunction", "looking up kernels", Kind::load},
    {"cuModuleGetGlobal", "looking up variables", Kind::load},
    {"cuLibraryLoadData", "loading libraries", Kind::load},
    {"cuLibraryGetKernel", "looking up kernels", Kind::load},
    {"cuLibraryGetModule", "loading libraries", Kind::load},
    {"cuLibraryGetGlobal", "looking up variables", Kind::load},
    {"cuKernelGetFunction", "looking up kernels", Kind::load},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", "asking about occupancy", Kind::occupancy},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "asking about occupancy", Kind::occupancy},
    {"cuOccupancyAvailableDynamicSMemPerBlock", "asking about occupancy", Kind::occupancy},
    {"cuOccupancyMaxActiveClusters", "asking about occupancy", Kind::occupancy},
    {"cuOccupancyMaxPotentialClusterSize", "asking about occupancy", Kind::occupancy},
    // The first of these calls in a program connects.
    {"cuInit", "starting (cuInit)", Kind::start},
    {"cuDriverGetVersion", "starting (cuInit)", Kind::start},
    {"cuGetProcAddress", "starting (cuInit)", Kind::start},
};

bool is_form_of(std::string_view name, std::string_view stem) noexcept {
  return name.starts_with(stem) && (name.size() == stem.size() || name[stem.size()] == '_');
}

// Functions that are shown under one name, added up.
struct Shown {
  std::string name;
  Kind kind = Kind::ask;
  uint64_t waits = 0, stalls = 0, pageable_waits = 0, wait_ns = 0, bytes = 0;
  uint64_t gain_ns = 0;  // the most that a change could save

  bool pageable() const { return pageable_waits * 2 > waits; }
};

std::vector<Shown> shown_calls(const RunFigures& figures) {
  std::vector<Shown> out;
  for (const WaitedCall& call : figures.calls) {
    const auto* facts = std::find_if(std::begin(kCalls), std::end(kCalls),
                                     [&](const CallFacts& row) { return is_form_of(call.name, row.stem); });
    const bool known = facts != std::end(kCalls);
    const Kind kind = known ? facts->kind : Kind::ask;
    const std::string name = known ? facts->shown : std::string(call.name);
    auto row = std::find_if(out.begin(), out.end(), [&](const Shown& other) { return other.name == name; });
    if (row == out.end()) row = out.insert(out.end(), Shown{.name = name, .kind = kind});
    row->waits += call.waits;
    row->stalls += call.stalls;
    row->pageable_waits += call.pageable_waits;
    row->bytes += call.bytes;
    // Connecting happens inside the call and does not count as a wait for a reply.
    row->wait_ns += kind == Kind::start ? call.ns : call.wait_ns;
  }
  return out;
}

// --- text ------------------------------------------------------------------------------------------------------------

template <class... Values>
std::string text(const char* format, Values... values) {
  char out[512];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

std::string seconds_text(uint64_t ns) {
  const double seconds = double(ns) / 1e9;
  if (seconds >= 100) return text("%.0f s", seconds);
  if (seconds >= 0.1) return text("%.1f s", seconds);
  return text("%.3f s", seconds);
}

// 1,024
std::string count_text(uint64_t count) {
  std::string digits = std::to_string(count), out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string times_text(uint64_t count) { return count == 1 ? "once" : count_text(count) + " times"; }

std::string rounded_bytes_text(uint64_t bytes) {
  if (bytes >= 10ull << 30) return text("%.0f GiB", double(bytes) / double(1ull << 30));
  if (bytes >= 10ull << 20) return text("%" PRIu64 " MiB", bytes >> 20);
  return text("%" PRIu64 " KiB", (bytes + 1023) >> 10);
}

// At most 1, although several threads may have waited concurrently.
double share(uint64_t part, const RunFigures& figures) {
  return figures.elapsed_ns ? std::min(1.0, double(part) / double(figures.elapsed_ns)) : 0;
}

std::string percent_text(uint64_t part, const RunFigures& figures) {
  return text("%.0f %%", 100 * share(part, figures));
}

std::string call_text(const Shown& call) {
  std::string out = call.name;
  const bool from = call.kind == Kind::upload || call.kind == Kind::upload_async;
  if (call.pageable()) out += from ? " from pageable memory" : " with pageable memory";
  return out;
}

// --- the changes -----------------------------------------------------------------------------------------------------

struct Change {
  uint64_t gain_ns = 0;
  std::string told;
};

std::string call_change(const Shown& call) {
  const KindFacts& facts = kKinds[size_t(call.kind)];
  if (call.stalls > call.waits)
    return text("%s stood %s, %s, because the connection took no more: send fewer bytes, or use a faster network",
                call_text(call).c_str(), times_text(call.stalls).c_str(), seconds_text(call.wait_ns).c_str());
  if (call.kind == Kind::start)
    return text("%s took %s: %s", call.name.c_str(), seconds_text(call.wait_ns).c_str(), facts.change);
  return text("%s waited %s, %s: %s", call_text(call).c_str(), times_text(call.waits).c_str(),
              seconds_text(call.wait_ns).c_str(), call.pageable() && facts.pageable ? facts.pageable : facts.change);
}

std::string turns_change(const RunFigures& figures, const WaitParts& parts) {
  return text(
      "its work was held back %s, %s, while it was other tenants' turn: a larger weight, another class or an "
      "emptier GPU",
      times_text(figures.server->held).c_str(), seconds_text(parts.held).c_str());
}

std::string server_change(const RunFigures&, const WaitParts& parts) {
  return text("the server's own work took %s: fewer calls (CUDA graphs, larger kernels), or a faster server",
              seconds_text(parts.server).c_str());
}

std::string gpu_change(const RunFigures& figures, const WaitParts&) {
  return text("%s for %s of the time: only less or faster work on the GPU would help",
              figures.server->gpu_counted ? "the GPU had its work" : "it waited for the GPU",
              percent_text(figures.server->gpu_ns, figures).c_str());
}

// Changes that concern no single call.
struct PartChange {
  uint64_t (*gain_ns)(const RunFigures&, const WaitParts&);
  double share_min;
  std::string (*describe)(const RunFigures&, const WaitParts&);
};

constexpr PartChange kPartChanges[] = {
    {[](const RunFigures&, const WaitParts& parts) { return parts.held; }, kShareMin, turns_change},
    {[](const RunFigures&, const WaitParts& parts) { return parts.server; }, kShareMin, server_change},
    {[](const RunFigures& figures, const WaitParts&) { return figures.server ? figures.server->gpu_ns : 0; },
     kGpuBoundShare, gpu_change},
};

// A call's time beyond its round trips.
uint64_t beyond(const Shown& call, const RunFigures& figures) {
  return call.wait_ns - std::min(call.wait_ns, call.waits * figures.round_trip_ns);
}

// The part of a call's waiting time that a change of the call could save. The time of other causes is divided among the
// calls that may have waited for them, in proportion to their time beyond the round trips. A call that waits for
// earlier calls and moves no bulk can save only its round trips, because further time may belong to the earlier calls.
void find_gains(std::vector<Shown>& calls, const RunFigures& figures, const WaitParts& parts) {
  auto part_of_each = [&](uint64_t part, bool KindFacts::*awaits) {
    uint64_t all = 0;
    for (const Shown& call : calls)
      if (kKinds[size_t(call.kind)].*awaits) all += beyond(call, figures);
    return all ? std::min(1.0, double(part) / double(all)) : 0.0;
  };
  const double gpu = part_of_each(parts.gpu + parts.held, &KindFacts::awaits_gpu);
  const double server = part_of_each(parts.server, &KindFacts::awaits_server);
  for (Shown& call : calls) {
    const KindFacts& facts = kKinds[size_t(call.kind)];
    if (facts.awaits_server && call.bytes < call.waits * kBulkBytes) {
      call.gain_ns = call.wait_ns - beyond(call, figures);
      continue;
    }
    const double elsewhere = std::min(1.0, (facts.awaits_gpu ? gpu : 0) + (facts.awaits_server ? server : 0));
    call.gain_ns = call.wait_ns - uint64_t(double(beyond(call, figures)) * elsewhere);
  }
}

// The server's work for calls with their own change is not a separate change.
void leave_to_calls(WaitParts& parts, const std::vector<Shown>& calls, const RunFigures& figures) {
  for (const Shown& call : calls) {
    if (!kKinds[size_t(call.kind)].awaits_server && call.waits)
      parts.server -= std::min(parts.server, beyond(call, figures));
  }
}

std::vector<Change> changes(const std::vector<Shown>& calls, const RunFigures& figures, const WaitParts& parts) {
  std::vector<Change> out;
  for (const Shown& call : calls)
    if (share(call.gain_ns, figures) >= kShareMin) out.push_back({call.gain_ns, call_change(call)});
  for (const PartChange& row : kPartChanges) {
    const uint64_t gain_ns = row.gain_ns(figures, parts);
    if (share(gain_ns, figures) >= row.share_min) out.push_back({gain_ns, row.describe(figures, parts)});
  }
  std::stable_sort(out.begin(), out.end(), [](const Change& a, const Change& b) { return a.gain_ns > b.gain_ns; });
  return out;
}

// --- the other lines -------------------------------------------------------------------------------------------------

std::string first_line(const RunFigures& figures) {
  return text("why %.*s, process %ld, took %s: it waited %s (%s) for the server, in %s round trips",
              int(std::min<size_t>(figures.program.size(), 64)), figures.program.data(), figures.process_id,
              seconds_text(figures.elapsed_ns).c_str(), seconds_text(figures.wait_ns).c_str(),
              percent_text(figures.wait_ns, figures).c_str(), count_text(figures.waits).c_str());
}

std::string parts_line(const RunFigures& figures, const WaitParts& parts) {
  std::string link = figures.round_trip_ns ? text("round trip %.3f ms, ", double(figures.round_trip_ns) / 1e6) : "";
  std::string out =
      text("waits: network %s (%ssent %s, received %s)", percent_text(parts.network, figures).c_str(), link.c_str(),
           rounded_bytes_text(figures.sent).c_str(), rounded_bytes_text(figures.received).c_str());
  if (!figures.server) return out + "; what the server did is not known: it is too old to tell, or was gone";
  out += text(", server %s, GPU %s, others' turns %s", percent_text(parts.server, figures).c_str(),
              percent_text(parts.gpu, figures).c_str(), percent_text(parts.held, figures).c_str());
  if (!figures.server->gpu_counted) return out;
  return out + text("; the GPU had its work for %s of the time", percent_text(figures.server->gpu_ns, figures).c_str());
}

std::string calls_line(std::vector<Shown> calls) {
  std::stable_sort(calls.begin(), calls.end(), [](const Shown& a, const Shown& b) { return a.wait_ns > b.wait_ns; });
  std::string out;
  size_t shown = 0;
  for (const Shown& call : calls) {
    if (shown == kCallsShown || call.wait_ns == 0) break;
    if (call.waits + call.stalls == 0 && call.kind != Kind::start) continue;
    out +=
        text("%s%s %s, %s", shown++ ? "; " : "waited most: ", call_text(call).c_str(),
             times_text(std::max<uint64_t>(call.waits + call.stalls, 1)).c_str(), seconds_text(call.wait_ns).c_str());
  }
  return shown ? out : "no call waited";
}

}  // namespace

WaitParts divide_waiting(const RunFigures& figures) noexcept {
  WaitParts parts;
  uint64_t left = figures.wait_ns;
  auto take = [&left](uint64_t most) {
    const uint64_t taken = std::min(left, most);
    left -= taken;
    return taken;
  };
  parts.network = take(figures.waits * figures.round_trip_ns);
  if (figures.server) {
    const ServerTimes& server = *figures.server;
    parts.held = take(server.held_ns);
    parts.gpu = take(server.gpu_ns);
    const uint64_t not_its_own = server.input_ns + server.device_ns + server.held_ns;
    parts.server = take(server.age_ns - std::min(server.age_ns, not_its_own));
  }
  parts.network += left;
  return parts;
}

std::vector<std::string> explain_run(const RunFigures& figures) {
  const WaitParts parts = divide_waiting(figures);
  std::vector<Shown> calls = shown_calls(figures);
  find_gains(calls, figures, parts);
  WaitParts others = parts;
  leave_to_calls(others, calls, figures);
  std::vector<std::string> out{first_line(figures), parts_line(figures, parts), calls_line(calls)};
  for (const Change& change : changes(calls, figures, others)) {
    if (out.size() == 3 + kChangesShown) break;
    out.push_back(text("change: %s", change.told.c_str()));
  }
  if (out.size() == 3) out.push_back("change nothing: no wait is worth it");
  if (out.size() == 4)
    out.push_back(text("nothing else is to be gained: no other wait took %.0f %% of the time", 100 * kShareMin));
  return out;
}

}  // namespace gpuwire::client
