#include "server/profiler/cupti/trace.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "server/profiler/limits.hpp"

namespace gpuwire::server::cupti {

namespace {

// CUPTI reports external correlations with the records of driver calls, so these have to be requested, too.
constexpr struct {
  uint32_t kind;
  const char* name;
} kKinds[] = {{kExternalCorrelation, "external correlations"},
              {kDriver, "driver calls"},
              {kConcurrentKernel, "kernels"},
              {kMemcpy, "copies"},
              {kMemcpyPeer, "copies between GPUs"},
              {kMemset, "memsets"},
              {kGraphTrace, "graphs"}};

uint64_t CUDAAPI monotonic_ns() {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void CUDAAPI buffer_requested(uint8_t** buffer, size_t* bytes, size_t* records_max) {
  *buffer = Buffers::of_process().give();
  *bytes = *buffer ? kCuptiBufferBytes : 0;
  *records_max = 0;  // as many as fit
}

void CUDAAPI buffer_completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  if (buffer) Buffers::of_process().take(buffer, valid_bytes);
}

// Returns the record, if all of its used part lies in the buffer.
template <class Form>
const Form* form_of(const Buffers::Filled& buffer, const Activity* record) {
  const auto at = reinterpret_cast<uintptr_t>(record), begin = reinterpret_cast<uintptr_t>(buffer.data);
  if (at < begin || at % alignof(Form) != 0 || at - begin > buffer.bytes || buffer.bytes - (at - begin) < sizeof(Form))
    return nullptr;
  return reinterpret_cast<const Form*>(record);
}

}  // namespace

tl::expected<std::unique_ptr<Trace>, std::string> Trace::begin(Library library) {
  const Functions& call = library.call;
  auto refused = [&](std::string_view what, Result result) {
    return tl::unexpected(fmt::format("{}: {}: {}", library.name, what, describe(call, result)));
  };
  // Limits the GPU's memory for unread times. Without the limit CUPTI takes up to 250 buffers of 3 MB.
  size_t buffers = kCuptiDeviceBuffersMax, bytes = sizeof buffers;
  if (call.ActivitySetAttribute) call.ActivitySetAttribute(kDeviceBufferPoolLimit, &bytes, &buffers);
  if (const Result result = call.ActivityRegisterTimestampCallback(&monotonic_ns); result != kSuccess)
    return refused("the clock", result);
  if (const Result result = call.ActivityRegisterCallbacks(&buffer_requested, &buffer_completed); result != kSuccess)
    return refused("buffers", result);
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    const Result result = call.ActivityEnable(kKinds[i].kind);
    if (result == kSuccess) continue;
    for (size_t enabled = 0; enabled < i; ++enabled) call.ActivityDisable(kKinds[enabled].kind);
    return refused(kKinds[i].name, result);
  }
  if (call.ActivityEnableDriverApi)
    for (uint32_t function : kCallsWithoutRecords) call.ActivityEnableDriverApi(function, 0);
  for (const Buffers::Filled& old : Buffers::of_process().filled()) Buffers::of_process().release(old);
  return std::unique_ptr<Trace>(new Trace(std::move(library)));
}

bool Trace::records(const TimedWork& work) {
  const std::string_view call = work.call;
  switch (work.kind) {
    case SpanKind::kernel: return true;
    case SpanKind::copy: return work.bytes != 0 && call.starts_with("cuMemcpy");
    case SpanKind::memset: return work.bytes != 0;
    case SpanKind::graph: return call == "cuGraphLaunch";
    case SpanKind::method: return false;
  }
  return false;
}

// --- executor ------------------------------------------------------------------------------------------------------

void Trace::give(const Span& span) {
  const uint64_t now_ns = monotonic_ns();
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (given_.size() >= kCuptiGivenMax) {
      if (!given_.front().received) ++forgotten_;
      mark_received(given_.front());
      given_.pop_front();
      ++first_id_;
    }
    id = first_id_ + given_.size();
    // The trace waits for the work once the driver has accepted it; its records may arrive before.
    given_.push_back({span, now_ns, false});
    ++awaited_;
  }
  library_.call.ActivityPushExternalCorrelationId(kCorrelationCustom0, id);
}

bool Trace::given(bool done) {
  uint64_t id = 0;
  library_.call.ActivityPopExternalCorrelationId(kCorrelationCustom0, &id);
  MutexLock lock(mutex_);
  if (!done) mark_received(given_.back());
  return awaited_ == 1;
}

void Trace::end() {
  if (std::exchange(ended_, true)) return;
  for (const auto& [kind, name] : kKinds) library_.call.ActivityDisable(kind);
}

// --- the collecting side -------------------------------------------------------------------------------------------

uint64_t Trace::awaited() const {
  MutexLock lock(mutex_);
  return awaited_ > lost_records_ ? awaited_ - lost_records_ : 0;
}

uint64_t Trace::give_up() {
  MutexLock lock(mutex_);
  const uint64_t not_received = awaited_ + std::exchange(forgotten_, 0);
  for (Given& given : given_) mark_received(given);
  return not_received;
}

Trace::Given* Trace::find(uint64_t id) {
  return id >= first_id_ && id - first_id_ < given_.size() ? &given_[id - first_id_] : nullptr;
}

void Trace::mark_received(Given& given) {
  if (!std::exchange(given.received, true)) --awaited_;
}

// Bytes after an invalid record are not read, because CUPTI's function and ours use the sizes of records.
void Trace::read(const Buffers::Filled& buffer, std::vector<Record>& records, std::vector<Link>& links) const {
  Activity* record = nullptr;
  auto add = [&](const auto* form, uint64_t bytes = 0, const char* name = nullptr) {
    if (form) records.push_back({form->correlation, form->start, form->end, bytes, name});
    return form != nullptr;
  };
  auto add_with_bytes = [&](const auto* form) { return add(form, form ? form->bytes : 0); };
  size_t seen = 0;
  bool whole = true;
  while (whole && seen++ < kCuptiBufferBytes / sizeof(Activity) &&
         library_.call.ActivityGetNextRecord(buffer.data, buffer.bytes, &record) == kSuccess) {
    const auto* any = form_of<Activity>(buffer, record);
    if (!any) return;
    switch (any->kind) {
      case kConcurrentKernel: {
        const auto* kernel = form_of<KernelActivity>(buffer, record);
        whole = add(kernel, 0, kernel ? kernel->name : nullptr);
        break;
      }
      case kMemcpy: whole = add_with_bytes(form_of<CopyActivity>(buffer, record)); break;
      case kMemcpyPeer: whole = add_with_bytes(form_of<PeerCopyActivity>(buffer, record)); break;
      case kMemset: whole = add_with_bytes(form_of<MemsetActivity>(buffer, record)); break;
      case kGraphTrace: whole = add(form_of<GraphActivity>(buffer, record)); break;
      case kExternalCorrelation: {
        const auto* link = form_of<ExternalCorrelationActivity>(buffer, record);
        whole = link != nullptr;
        if (link && link->external_kind == kCorrelationCustom0) links.push_back({link->correlation, link->external});
        break;
      }
      default: break;
    }
  }
}

void Trace::link(const std::vector<Link>& links) {
  for (const Link& each : links) {
    auto [place, added] = ids_.insert_or_assign(each.correlation, each.id);
    if (!added) continue;
    correlations_.push_back(each.correlation);
    if (correlations_.size() <= kCuptiGivenMax) continue;
    ids_.erase(correlations_.front());
    correlations_.pop_front();
  }
}

// False: the record's work is unknown.
bool Trace::resolve(const Record& record, uint64_t now_ns, Found& found) {
  const auto id = ids_.find(record.correlation);
  if (id == ids_.end()) return false;
  Given* given = find(id->second);
  if (!given) return true;  // the trace no longer waits for it
  const bool first = !given->received;
  mark_received(*given);
  constexpr auto kSlack = uint64_t(std::chrono::nanoseconds(kCuptiClockSlack).count());
  const bool has_times = record.start_ns != 0 && record.end_ns >= record.start_ns &&
                         record.start_ns + kSlack >= given->given_ns && record.end_ns <= now_ns + kSlack;
  if (!has_times) {
    found.without_times += first;
    return true;
  }
  if (record.start_ns < given->given_ns) found.error_ns = std::max(found.error_ns, given->given_ns - record.start_ns);
  Found::Piece piece{given->span, record.name};
  piece.span.start_ns = record.start_ns;
  piece.span.end_ns = record.end_ns;
  if (record.bytes != 0) piece.span.bytes = record.bytes;  // a call may consist of several copies
  found.pieces.push_back(piece);
  return true;
}

Trace::Found Trace::collect(bool ask, bool forced) {
  const Functions& call = library_.call;
  if (ask) call.ActivityFlushAll(forced ? kFlushForced : 0);
  Buffers& buffers = Buffers::of_process();
  std::vector<Record> records;
  std::vector<Link> links;
  for (const Buffers::Filled& buffer : buffers.filled()) {
    read(buffer, records, links);
    buffers.release(buffer);
  }
  size_t lost = 0;
  if (ask && call.ActivityGetNumDroppedRecords(nullptr, 0, &lost) != kSuccess) lost = 0;
  const uint64_t now_ns = monotonic_ns();
  Found found;
  MutexLock lock(mutex_);
  lost_records_ += lost;
  found.without_times = std::exchange(forgotten_, 0);
  link(links);
  auto resolved = [&](const Record& each) REQUIRES(mutex_) { return resolve(each, now_ns, found); };
  if (!links.empty()) std::erase_if(early_, resolved);
  for (const Record& each : records) {
    if (resolve(each, now_ns, found)) continue;
    early_.push_back(each);
    if (early_.size() > kCuptiEarlyMax) early_.pop_front();
  }
  return found;
}

}  // namespace gpuwire::server::cupti
