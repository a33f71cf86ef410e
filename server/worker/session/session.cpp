#include "server/worker/session/session.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "protocol/cuda_abi/sticky.hpp"
#include "protocol/wire/limits.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/terminal_text.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"
#include "server/driver_table.hpp"
#include "server/gate/gate.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/profiler.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/postponed_frees.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/chunk_store/chunk_store.hpp"
#include "server/session_notices.hpp"
#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kLoggedNameBytesMax = 256;

std::string logged(capnp::Text::Reader text) {
  return wire::ForeignText(std::string(text.begin(), std::min<size_t>(text.size(), kLoggedNameBytesMax)));
}

WatcherDriver watcher_driver(const DriverTable& driver) { return {driver.cuEventQuery, driver.cuCtxSetCurrent}; }

SpinPolicy spin(unsigned cores) {
  return cores < kSpinCoresMin ? kNoSpin : cores < kLongSpinCoresMin ? kShortSpin : kLongSpin;
}

}  // namespace

CallTable make_call_table(std::span<const ReplayEntry> session_calls, std::span<const ReplayEntry> driver_calls) {
  CallTable table{};
  for (size_t i = 0; i < session_calls.size() && i < wire::kFirstDriverOrdinal; ++i) {
    if (session_calls[i].function) table[i] = &session_calls[i];
  }
  for (size_t i = 0; i < driver_calls.size() && i + wire::kFirstDriverOrdinal < table.size(); ++i) {
    if (driver_calls[i].function) table[i + wire::kFirstDriverOrdinal] = &driver_calls[i];
  }
  return table;
}

Session::Session(WorkerSessionDeps parts)
    : parts_(std::move(parts)),
      meter_(*parts_.link, parts_.counters),
      source_(*parts_.link, meter_, spin(parts_.cores).socket_spin_us, parts_.host_memory),
      outbox_(*parts_.link, meter_, outbox_hooks()),
      out_of_order_reader_(out_of_order_reader_parts()),
      handles_(parts_.host_memory),
      quiescence_(
          {.wake = [this] { parts_.link->wake(); }, .quiet = parts_.quiet, .return_wanted = parts_.return_wanted}),
      watcher_(watcher_driver(*parts_.driver), spin(parts_.cores).watch_spin_us, [this] { enter_thread(); }),
      waiters_([this] { enter_thread(); }),
      poll_time_(spin(parts_.cores).wait_poll_us) {
  source_.attend(quiescence_.attention());
  if (parts_.profiler)
    parts_.profiler->frames_from([this] {
      const wire::FrameHeader& header = source_.header();
      return Profiler::Frame{header.context, header.sequence};
    });
  if (Gate* gate = parts_.gate) {
    source_.poll_longer(gate->spin_us());
    source_.observe_sleep([gate](bool sleeps) { sleeps ? gate->going_idle() : gate->woken(); });
  }
}

Session::~Session() { release(); }

void Session::enter_thread() noexcept {
  if (!parts_.driver->cuThreadExchangeStreamCaptureMode) return;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  parts_.driver->cuThreadExchangeStreamCaptureMode(&mode);
}

namespace {

bool runs_ahead(const ReplayEntry& entry, const wire::FrameHeader& header) {
  auto kind = wire::FrameKind(header.kind);
  return entry.out_of_turn && (kind == wire::FrameKind::called || (kind == wire::FrameKind::posted && entry.posted));
}

}  // namespace

OutOfOrderReader::Parts Session::out_of_order_reader_parts() {
  return {.source = source_,
          .awaited = [this] { return state_ && state_->callbacks().awaiting(); },
          .room_awaited =
              [this] {
                return outbox_.room_awaited() || (hung_up_.load(std::memory_order_relaxed) &&
                                                  parts_.link->state() == link::Link::State::attached);
              },
          .out_of_turn = [this](const wire::FrameHeader& header) -> const ReplayEntry* {
            const ReplayEntry* entry = find_entry(header.ordinal);
            return entry && runs_ahead(*entry, header) ? entry : nullptr;
          },
          .execute =
              [this](const ReplayEntry& entry, Call& call) {
                try {
                  entry.function(*this, call);
                } catch (const ProtocolFault& found) {
                  throw std::runtime_error(found.reason);
                }
              },
          .fault = [this](std::string reason) { stop(EndCause::fault, std::move(reason)); }};
}

LinkOutbox::Hooks Session::outbox_hooks() {
  return {.room_wanted =
              [this] {
                out_of_order_reader_.start();
                out_of_order_reader_.awake();
              },
          .reads_ahead = [] { return OutOfOrderReader::is_caller(); }};
}

// --- the beginning -------------------------------------------------------------------------------------------------

std::optional<SessionEnd> Session::begin() {
  if (auto end = read_hello()) {
    notify_ending(*end);
    return end;
  }
  auto welcome = parts_.welcome->getRoot<schema::Welcome>();
  auto id = welcome.getSessionId();
  std::copy_n(parts_.id.begin(), std::min(parts_.id.size(), id.size()), id.begin());
  resumable_ = parts_.resume_grace_ms != 0 && client_comes_back_;
  if (resumable_) {
    welcome.setResumeSecret({parts_.resume_secret.data(), parts_.resume_secret.size()});
    welcome.setResumeGraceMs(parts_.resume_grace_ms);
    welcome.setHangUpGraceMs(std::min(parts_.hang_up_grace_ms, parts_.resume_grace_ms));
    bool wanted = parts_.wants_heartbeats && parts_.wants_heartbeats(client_end_);
    welcome.setSameMachine(parts_.wants_heartbeats && !wanted);
    heartbeats_ = wanted && client_knows_heartbeats_;
    if (heartbeats_) source_.expect_heartbeats();
    welcome.setHeartbeats(heartbeats_);
    parts_.link->outlive_connections();
    if (unsigned lanes = std::min(client_lanes_, parts_.lanes_max); lanes >= 2 && parts_.link->begin_parts(false)) {
      lanes_ = lanes;
      welcome.setLanes(uint8_t(lanes));
    }
  }
  welcome.setChunks(chunks_);
  welcome.setOrdersUploads(parts_.settings.upload_order != nullptr);
  // Another connection may arrive, and its end be reported, before Welcome is sent.
  state_ = std::make_unique<ReplayState>(*this, parts_.settings);
  if (parts_.welcoming) parts_.welcoming();
  outbox_.control(wire::ControlOrdinal::welcome, *parts_.welcome);
  enter_thread();
  primary_warm_ = parts_.claim_primary && parts_.claim_primary();
  if (parts_.gate) parts_.gate->enter_executor();
  if (parts_.captures_output) start_capture();
  state_->host_regions().take_descriptors_from(
      [this](uint64_t number) { return parts_.link->transport()->take_descriptor(number); });
  return std::nullopt;
}

std::optional<SessionEnd> Session::read_hello() {
  switch (source_.next(int(wire::kHandshakeTimeoutMs))) {
    case FrameSource::Next::frame: break;
    case FrameSource::Next::ended: return connection_ended();
    case FrameSource::Next::fault: return SessionEnd{EndCause::fault, source_.fault()};
    case FrameSource::Next::late:
      return SessionEnd{EndCause::fault, fmt::format("no Hello within {} ms", wire::kHandshakeTimeoutMs)};
  }
  const wire::FrameHeader& header = source_.header();
  if (wire::FrameKind(header.kind) != wire::FrameKind::control ||
      header.ordinal != uint32_t(wire::ControlOrdinal::hello))
    return SessionEnd{EndCause::fault,
                      fmt::format("the first frame is no Hello (kind {}, ordinal {})", header.kind, header.ordinal)};
  std::string key_of_user;
  auto wrong = wire::read_guarded([&] {
    wire::SegmentReader message(source_.message());
    auto hello = message.getRoot<schema::Hello>();
    client_ = {logged(hello.getRelease()), logged(hello.getProgram()), logged(hello.getHost()), hello.getProcessId()};
    client_comes_back_ = !hello.getEndsWithConnection();
    client_knows_heartbeats_ = hello.getHeartbeats();
    client_lanes_ = hello.getLanes();
    client_end_ = {logged(hello.getAddress()), logged(hello.getMachine())};
    auto key = hello.getCacheKey();
    key_of_user.assign(key.begin(), key.end());
  });
  if (!wrong && !key_of_user.empty() && key_of_user.size() != wire::kCacheKeyBytes)
    wrong = "a cache key of a wrong size";
  if (wrong) return SessionEnd{EndCause::fault, "Hello: " + *wrong};
  std::string& tenant = parts_.settings.tenant;
  find_chunks(key_of_user);
  if (tenant.empty()) tenant = std::move(key_of_user);
  // With neither a tenant nor a key the images have no owner, so they are stored for the session only.
  if (tenant.empty()) parts_.settings.module_cache = nullptr;
  if (!parts_.tenant_known) return std::nullopt;
  if (auto known = parts_.tenant_known(tenant); !known)
    return SessionEnd{EndCause::internal, "the worker could not be confined to its tenant: " + known.error()};
  return std::nullopt;
}

// Images of an authenticated tenant are found by their plain digests, all others by digests under the user's key: a
// client without the key finds nothing that was cached under it.
void Session::find_chunks(const std::string& key_of_user) {
  ChunkStore*& chunks = parts_.settings.chunks;
  if (!chunks) return;
  if (!parts_.settings.tenant.empty()) {
    chunks_ = 1;
  } else if (digest::Key key{}; key_of_user.size() == key.size()) {
    std::copy(key_of_user.begin(), key_of_user.end(), key.begin());
    chunks->use_key(key);
    chunks_ = 2;
  } else {
    chunks = nullptr;
  }
}

void Session::start_capture() {
  capture_.start([this](uint8_t descriptor, std::span<const std::byte> text) {
    notify::output(outbox_, {.descriptor = descriptor}, text);
  });
}

// --- the executor --------------------------------------------------------------------------------------------------

SessionEnd Session::run() {
  std::optional<SessionEnd> end;
  begun_ = std::chrono::steady_clock::now() - source_.waited();
  try {
    while (!end) end = execute();
  } catch (const std::exception& error) {  // out of memory or of threads: not the client's doing
    end = SessionEnd{EndCause::internal, error.what()};
  }
  notify_ending(*end);
  return *end;
}

std::optional<SessionEnd> Session::execute() {
  if (stopping_.load(std::memory_order_relaxed)) [[unlikely]]
    return stopped();
  if (quiescence_.attention().load(std::memory_order_relaxed)) [[unlikely]]
    quiescence_.follow(
        {[this] { return why_not_quiet(); }, [this] { go_on(); }, [this](bool back) { move_blocks(back); }});
  switch (source_.next()) {
    case FrameSource::Next::frame: break;
    case FrameSource::Next::ended: return connection_ended();
    case FrameSource::Next::fault: return SessionEnd{EndCause::fault, source_.fault()};
    case FrameSource::Next::late: return std::nullopt;
  }
  const wire::FrameHeader& header = source_.header();
  switch (wire::FrameKind(header.kind)) {
    case wire::FrameKind::posted:
    case wire::FrameKind::called:
      if (quiescence_.quiet()) [[unlikely]] {
        if (auto end = await_return()) return end;
      }
      return execute_call();
    case wire::FrameKind::acknowledge:  // the link has seen it already
      if (parts_.link->bad_acknowledgement())
        return SessionEnd{EndCause::fault, "an acknowledgement of what was not sent"};
      return std::nullopt;
    case wire::FrameKind::control:
      if (header.ordinal == uint32_t(wire::ControlOrdinal::goodbye)) return SessionEnd{EndCause::finished, "goodbye"};
      if (header.ordinal == uint32_t(wire::ControlOrdinal::acknowledge_now)) {
        outbox_.acknowledge(source_.frame_end(), true);
        return std::nullopt;
      }
      if (!heartbeats_ || header.ordinal != uint32_t(wire::ControlOrdinal::heartbeat)) break;
      outbox_.acknowledge(source_.frame_end());
      return std::nullopt;
    default: break;
  }
  return SessionEnd{EndCause::fault,
                    fmt::format("a frame of kind {} and ordinal {} within a session", header.kind, header.ordinal)};
}

const ReplayEntry* Session::find_entry(uint32_t ordinal) const {
  return ordinal < parts_.calls->size() ? (*parts_.calls)[ordinal] : nullptr;
}

std::optional<SessionEnd> Session::execute_call() {
  const wire::FrameHeader& header = source_.header();
  auto fault = [](std::string reason) { return SessionEnd{EndCause::fault, std::move(reason)}; };
  if (header.sequence != executed_ + 1)
    return fault(fmt::format("frame {} follows frame {}", header.sequence, executed_));
  const ReplayEntry* entry = find_entry(header.ordinal);
  if (!entry) return fault(fmt::format("unknown call ordinal {} in frame {}", header.ordinal, header.sequence));
  if (wire::FrameKind(header.kind) == wire::FrameKind::posted && !entry->posted)
    return fault(fmt::format("{} may not be posted (frame {})", entry->name, header.sequence));

  std::string wrong;
  bool executed_already = source_.seen_ahead() && runs_ahead(*entry, header);
  if (!executed_already) try {
      wire::SegmentReader message(source_.message());
      Call call{header, message, source_};
      dispatch(*entry, call);
    } catch (const ProtocolFault& found) {
      wrong = found.reason;
    } catch (const kj::Exception&) {
      wrong = wire::describe_exception(std::current_exception());
    }
  if (!wrong.empty()) {
    if (auto end = stopped()) return end;  // an interrupted read looks like a fault
    return fault(fmt::format("{} (frame {}): {}", entry->name, header.sequence, wrong));
  }
  if (!state_->postponed_frees().empty()) {
    source_.finish_frame();  // frees wait for host functions, whose answers are then read ahead
    run_postponed_frees(*this);
  }
  executed_ = header.sequence;
  outbox_.acknowledge(source_.frame_end());
  return std::nullopt;
}

void Session::dispatch(const ReplayEntry& entry, Call& call) {
  check_bulk(entry, call.header);
  bool called = wire::FrameKind(call.header.kind) == wire::FrameKind::called;
  if (CUresult error = state_->enter(call.header, entry, context_)) {
    finish(*this, call, error);
    return;
  }
  if (entry.out_of_turn) {
    // Work on the GPU waits for the answer, and the next turn may wait for that work: so the answer waits for no turn.
    Gate::Unasked unasked;
    entry.function(*this, call);
  } else {
    entry.function(*this, call);
  }
  // A call that has only success to report leaves the reply to this function. A call without all of its bulk was not
  // done.
  if (called && !call.answered && !source_.broken() && outbox_.last_reply() != call.header.sequence)
    send_result(*this, call.header.sequence, CUDA_SUCCESS);
}

// --- waiting -------------------------------------------------------------------------------------------------------

bool Session::poll_or_defer(Call& call, DeviceWait wait) {
  call.answered = true;
  if (wait.query) {
    CUresult result = poll_device(*this, wait.query);
    if (result != CUDA_ERROR_NOT_READY) {
      wait.finish(result);
      return true;
    }
  }
  if (watch_instead(wait)) return false;
  wait_elsewhere([wait = std::move(wait)] { wait.finish(wait.wait()); });
  return false;
}

// Has the watcher take a wait that ends with events if the waiters are crowded. Returns false if the watcher does not
// take it.
bool Session::watch_instead(const DeviceWait& wait) {
  if (!wait.events || !waiters_.crowded()) return false;
  std::vector<CUevent> events = wait.events();
  if (events.empty()) return false;
  struct Rest {
    size_t open;
    CUresult result = CUDA_SUCCESS;  // the first failure
    std::function<void(CUresult)> finish;
  };
  // Only the watcher's thread uses `rest` from the first watch on.
  auto rest = std::make_shared<Rest>(Rest{events.size(), CUDA_SUCCESS, wait.finish});
  for (CUevent event : events) {
    bool watched = watcher_.watch(context_, event, [rest](CUresult result) {
      if (rest->result == CUDA_SUCCESS) rest->result = result;
      if (--rest->open == 0) rest->finish(rest->result);
    });
    if (watched) continue;
    stop(EndCause::fault, fmt::format("more than {} calls wait at once", kWatchedMax));
    break;
  }
  return true;
}

void Session::wait_elsewhere(std::function<void()> work) { run_elsewhere(std::move(work), waited_elsewhere_ns_); }

void Session::work_elsewhere(std::function<void()> work) { run_elsewhere(std::move(work), worked_elsewhere_ns_); }

void Session::run_elsewhere(std::function<void()> work, std::atomic<int64_t>& spent_ns) {
  const auto started = std::chrono::steady_clock::now();
  bool taken = waiters_.run([this, started, context = context_, work = std::move(work), &spent_ns] {
    try {
      if (context) parts_.driver->cuCtxSetCurrent(context);
      work();
      const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - started;
      spent_ns.fetch_add(spent.count(), std::memory_order_relaxed);
    } catch (const std::exception& error) {
      stop(EndCause::internal, error.what());
    } catch (...) {
      stop(EndCause::internal, "unknown exception");
    }
  });
  if (!taken)
    stop(EndCause::fault,
         fmt::format("more than {} calls wait at once for what only the driver can wait for", kBlockedWaitersMax));
}

// --- suspension ----------------------------------------------------------------------------------------------------

// Returns why the executor cannot rest, or an empty text. Called on the executor, between two frames. The driver would
// wait for work in flight, too, but for long, and with all calls of the session blocked meanwhile.
std::string Session::why_not_quiet() {
  if (source_.input_pending()) return "its program is making calls";
  if (!state_) return "it has only begun";
  if (state_->callbacks().unanswered() != 0) return "a host function of its program is pending";
  if (!waiters_.idle()) return "a call of its program is waiting";
  if (!watcher_.idle()) return "its program has work on the GPU";
  if (parts_.gate && parts_.gate->captures()) return "its program is capturing a stream";
  if (parts_.gate && !parts_.gate->rest()) return "its program has work on the GPU";
  if (!state_->client_keeps_memory()) return {};
  // The client is about to free cached memory, which would recall the session.
  if (parts_.gate) parts_.gate->work_on();
  return "its program made calls a moment ago";
}

std::optional<SessionEnd> Session::await_return() {
  while (quiescence_.quiet()) {
    quiescence_.await_return();
    if (auto end = stopped()) return end;
    quiescence_.follow(
        {[] { return "its program is making calls"; }, [this] { go_on(); }, [this](bool back) { move_blocks(back); }});
    if (auto end = stopped()) return end;
  }
  return std::nullopt;
}

// The blocks are with the host still if the broker has not had them moved back: it has given up their move.
void Session::go_on() {
  if (parts_.eviction) {
    EvictionOutcome outcome = parts_.eviction->back();
    if (outcome.result != EvictionResult::done) stop(EndCause::internal, "its device memory is lost: " + outcome.why);
  }
  if (parts_.gate) parts_.gate->work_on();
}

void Session::move_blocks(bool back) {
  EvictionOutcome outcome;
  if (!quiescence_.quiet()) outcome = {EvictionResult::refused, "its program is making calls"};
  else if (parts_.eviction) outcome = back ? parts_.eviction->back() : parts_.eviction->out();
  parts_.blocks_moved(back, outcome);
}

void Session::fail_posted(const wire::FrameHeader& header, CUresult result, std::string message) {
  int none = CUDA_SUCCESS;
  deferred_.compare_exchange_strong(none, int(result), std::memory_order_relaxed);
  explain(*this, result);
  notify::deferred_error(outbox_, {.result = result,
                                   .sequence = header.sequence,
                                   .ordinal = header.ordinal,
                                   .context = header.context,
                                   .sticky = gpuwire::cuda_abi::is_sticky(result),
                                   .message = message});
}

CUresult Session::take_deferred() {
  if (deferred_.load(std::memory_order_relaxed) == CUDA_SUCCESS) [[likely]]
    return CUDA_SUCCESS;
  return CUresult(deferred_.exchange(CUDA_SUCCESS, std::memory_order_relaxed));
}

SessionTimes Session::times() const {
  SessionTimes out{.age = std::chrono::steady_clock::now() - begun_, .input = source_.waited(), .device = polled_};
  // Work of other threads for the executor is the server's own work, and not the client's time.
  out.input -= std::min(out.input, std::chrono::nanoseconds(worked_elsewhere_ns_.load(std::memory_order_relaxed)));
  out.gpu = polled_ + std::chrono::nanoseconds(waited_elsewhere_ns_.load(std::memory_order_relaxed));
  if (!parts_.gate) return out;
  const Gate::Times gate = parts_.gate->times();
  out.held = gate.held;
  out.held_count = gate.held_count;
  out.gpu_counted = gate.counted;
  if (gate.counted) out.gpu = std::max(out.gpu, gate.gpu);
  return out;
}

bool Session::take_prewarmed_primary(CUdevice device) { return device == 0 && std::exchange(primary_warm_, false); }

// --- the end -------------------------------------------------------------------------------------------------------

void Session::stop(EndCause cause, std::string reason, StopKind kind) {
  {
    MutexLock lock(stop_mutex_);
    if (stop_) return;
    stop_ = SessionEnd{cause, std::move(reason), kind};
  }
  stopping_.store(true, std::memory_order_relaxed);
  outbox_.withhold_replies();
  if (parts_.gate) parts_.gate->interrupt();
  quiescence_.interrupt();
  parts_.link->interrupt();
}

void Session::connection_hung_up() {
  hung_up_.store(true, std::memory_order_relaxed);
  out_of_order_reader_.start();
  out_of_order_reader_.awake();
}

void Session::poll_executor() {
  const uint64_t visits = source_.visits();
  if (std::exchange(visits_seen_, visits) != visits || parts_.link->transport()->unread() == 0) return;
  out_of_order_reader_.start();
  out_of_order_reader_.keep_what_has_come();
}

std::optional<SessionEnd> Session::stopped() {
  MutexLock lock(stop_mutex_);
  return stop_;
}

SessionEnd Session::connection_ended() {
  if (auto end = stopped()) return *end;
  if (std::string broken = parts_.link->failure(); !broken.empty())
    return {parts_.link->damaged() ? EndCause::fault : EndCause::cut, std::move(broken)};
  return {EndCause::cut, executed_ == 0 ? "the client closed the connection"
                                        : fmt::format("the client closed the connection after frame {}", executed_)};
}

namespace {

// The program's error for each cause: a kernel that runs for too long fails as where a driver bounds it (a display's
// watchdog), a revoked identity is a missing right, and for all other causes the device is unavailable.
// CUDA_ERROR_SYSTEM_NOT_READY would mean that CUDA could not begin.
CUresult result_of(const SessionEnd& end) {
  if (end.cause != EndCause::stopped) return CUDA_ERROR_UNKNOWN;
  switch (end.stop) {
    case StopKind::kernel_time: return CUDA_ERROR_LAUNCH_TIMEOUT;
    case StopKind::revoked: return CUDA_ERROR_NOT_PERMITTED;
    case StopKind::ended: break;
  }
  return CUDA_ERROR_DEVICE_UNAVAILABLE;
}

}  // namespace

void Session::notify_ending(const SessionEnd& end) {
  if (end.cause == EndCause::finished || end.cause == EndCause::cut || end.cause == EndCause::resume_grace) return;
  notify::ending(outbox_, {.reason = end.reason, .result = result_of(end)});
}

bool Session::release() {
  if (quiescence_.quiet()) return false;
  if (parts_.gate) parts_.gate->stop();
  if (parts_.profiler) parts_.profiler->stop();
  out_of_order_reader_.stop();
  bool at_rest = !state_ || state_->end();
  watcher_.stop();
  waiters_.finish();
  capture_.stop();
  state_.reset();
  return at_rest;
}

}  // namespace gpuwire::server
