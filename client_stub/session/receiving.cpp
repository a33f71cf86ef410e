// The receiving side of ConnectedSession: the handling of each received frame, and the choice of the next reader.
#include <algorithm>
#include <chrono>
#include <stdexcept>

#include <fmt/format.h>

#include "client_stub/session/connected_session.hpp"
#include "client_stub/session/printable.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "protocol/wire/message_reader.hpp"
#include "schema/session.capnp.h"
#include "wire/session_frames.hpp"

namespace gpuwire::client {

namespace {

using transport::Received;

constexpr size_t kScatterBytes = 256 * 1024;
// The longest sleep of the session thread, in case it misses an event.
constexpr std::chrono::seconds kThreadSleep{10};

thread_local bool t_in_notice_handler = false;
struct InNoticeHandler {
  InNoticeHandler() { t_in_notice_handler = true; }
  ~InNoticeHandler() { t_in_notice_handler = false; }
};

}  // namespace

bool ConnectedSession::in_notice_handler() { return t_in_notice_handler; }
void ConnectedSession::leave_notice_handler() { t_in_notice_handler = false; }

void ConnectedSession::fault(std::string reason) {
  end(CUDA_ERROR_DEVICE_UNAVAILABLE, "the server sent something invalid (" + reason + "); the session is over", true);
}

bool ConnectedSession::receive_one(OwnCall* own) {
  switch (receiver_.try_next()) {
    case Received::frame:
      handling_ = true;
      dispatch(own);
      handling_ = false;
      return true;
    case Received::nothing: return false;
    case Received::fault: fault(receiver_.reason()); return false;
    case Received::ended: {
      std::string said = link_.failure();
      end(CUDA_ERROR_DEVICE_UNAVAILABLE,
          "the connection to the server was lost: " + (said.empty() ? receiver_.reason() : said), true);
      return false;
    }
  }
  return false;
}

void ConnectedSession::dispatch(OwnCall* own) {
  const wire::FrameHeader& header = receiver_.header();
  switch (wire::FrameKind(header.kind)) {
    case wire::FrameKind::acknowledge: {  // the link has handled it
      if (link_.bad_acknowledgement()) return fault("an acknowledgement of what was not sent");
      std::lock_guard lock(receive_mutex_);
      if (room_waiters_) room_changed_.notify_all();
      break;
    }
    case wire::FrameKind::reply: take_reply(own); break;
    case wire::FrameKind::notice: take_notice(); break;
    case wire::FrameKind::control:
      if (heartbeat_ && header.ordinal == uint32_t(wire::ControlOrdinal::heartbeat))
        break;  // its arrival is its only content
      [[fallthrough]];
    default: return fault("a control frame in the middle of a session");
  }
  acknowledge_received();
}

void ConnectedSession::acknowledge_received() {
  if (link_.consumed(link_.received())) link_.pump();
}

void ConnectedSession::take_reply(OwnCall* own) {
  const wire::FrameHeader& header = receiver_.header();
  PendingCall* call;
  BulkSink sink;
  {
    std::lock_guard lock(receive_mutex_);
    if (ending_) return;
    call = calls_.find(header.sequence);
    if (call && call->arrived) call = nullptr;
    if (call) {
      call->filling = true;
      sink = call->sink;
    }
  }
  if (!call) return fault(fmt::format("a reply to no call, sequence {}", header.sequence));
  bool mine = own && own->call == call;
  // Unrequested bulk of a reply ends the session, unlike that of a notice: no valid peer sends it.
  const bool asked_for = header.bulk_bytes <= sink.bytes || call->left;
  if (!asked_for) fault(fmt::format("a reply with {} bytes where {} were asked for", header.bulk_bytes, sink.bytes));
  // The receiver counts the arrived bytes of bulk, even if the reader leaves in the middle.
  handling_ = false;
  bool stored = asked_for && store_bulk(sink, header.bulk_bytes);
  handling_ = true;
  const bool lacks_bytes = header.bulk_bytes < sink.bytes;
  auto bad = wire::read_guarded([&] {
    if (!stored || call->left) return;
    if (mine) {
      own->read_in_place = true;
      wire::SegmentReader message(receiver_.message());
      if (own->read(own->user, message) == CUDA_SUCCESS && lacks_bytes) throw std::runtime_error(kLacksBytes);
    } else {
      auto words = receiver_.message();
      call->reply.assign(words.begin(), words.end());
    }
  });
  {
    std::lock_guard lock(receive_mutex_);
    call->filling = false;
    if (stored && !bad) {
      call->arrived = true;
      call->lacks_bytes = lacks_bytes;
      call->reply_bytes = sizeof header + header.message_words * sizeof(capnp::word) + header.bulk_bytes;
      if (!call->aside) --awaited_;
    }
    if (call->left) return calls_.remove(call);
    if (call->asleep) call->changed.notify_all();
  }
  if (bad) fault(*bad);
}

bool ConnectedSession::store_bulk(const BulkSink& sink, uint64_t bytes) {
  if (bytes > sink.bytes && sink.bytes) {
    fault(fmt::format("{} bytes where {} were asked for", bytes, sink.bytes));
    return false;
  }
  bool stored = true;
  if (sink.scatter && sink.bytes) {
    if (!scratch_) scratch_ = std::make_unique<std::byte[]>(kScatterBytes);
    for (size_t offset = 0; stored && offset < bytes;) {
      std::span piece(scratch_.get(), std::min<size_t>(kScatterBytes, bytes - offset));
      stored = receiver_.read_bulk(piece);
      if (stored) (*sink.scatter)(offset, piece);
      offset += piece.size();
    }
  } else if (sink.bytes) {
    stored = receiver_.read_bulk({static_cast<std::byte*>(sink.data), size_t(bytes)});
  } else {
    stored = receiver_.skip_bulk();
  }
  if (bytes > wire::kPostedBulkBytesMax) poll_lanes();
  if (!stored)
    end(CUDA_ERROR_DEVICE_UNAVAILABLE,
        "the connection to the server was lost in the middle of a copy: " + receiver_.reason(), true);
  return stored;
}

void ConnectedSession::take_notice() {
  const wire::FrameHeader& header = receiver_.header();
  if (header.sequence != ++notices_received_)
    return fault(fmt::format("notice {} where {} was due", header.sequence, notices_received_));
  auto ordinal = wire::NoticeOrdinal(header.ordinal);
  const wire::NoticeFacts facts = wire::notice(header.ordinal);
  const bool with_bulk = facts.bulk_bytes_max != 0;
  if (header.bulk_bytes > facts.bulk_bytes_max)
    return fault(fmt::format("notice {} with bulk of {} bytes, where {} are the most",
                             facts.name ? facts.name : "of an unknown kind", header.bulk_bytes, facts.bulk_bytes_max));
  wire::SegmentReader message(receiver_.message());
  std::string last_words;
  CUresult last_result = CUDA_ERROR_DEVICE_UNAVAILABLE;
  auto bad = wire::read_guarded([&] {
    if (ordinal == wire::NoticeOrdinal::ending) {
      auto ending = message.getRoot<schema::Ending>();
      auto reason = ending.getReason();
      last_words = "the server ended the session: " + printable({reason.begin(), reason.size()});
      if (ending.getResult()) last_result = cuda_abi::from_peer(ending.getResult());
      return;
    }
    InNoticeHandler inside;
    if (!with_bulk) return notices_.notice(ordinal, message);
    BulkSink sink = notices_.bulk_for(ordinal, message, header.bulk_bytes);
    if (!store_bulk(sink, header.bulk_bytes)) return;
    notices_.bulk_stored(
        ordinal, message,
        {static_cast<const std::byte*>(sink.data), sink.data && sink.bytes ? size_t(header.bulk_bytes) : 0});
  });
  if (bad) fault(*bad);
  if (!last_words.empty()) end(last_result, last_words, true);
}

void ConnectedSession::pass_on_role(std::unique_lock<std::mutex>&) {
  receiving_ = false;
  for (PendingCall* call = calls_.oldest(); call; call = call->newer)
    if (call->asleep && !call->arrived) return call->changed.notify_all();
  if (room_waiters_) return room_changed_.notify_all();
  if (!thread_awaits_role_ || awaited_) return;
  thread_awaits_role_ = false;
  link_.wake();
}

void ConnectedSession::notify_everybody() {
  std::lock_guard lock(receive_mutex_);
  for (PendingCall* call = calls_.oldest(); call; call = call->newer)
    if (call->asleep) call->changed.notify_all();
  room_changed_.notify_all();
}

bool ConnectedSession::receive_if_free() {
  {
    std::lock_guard lock(receive_mutex_);
    // A caller with a call in flight is about to receive itself, and would wait for this thread to release the role.
    if (receiving_ || awaited_ || ending_) return false;
    take_role();
  }
  bool any = false;
  for (bool needed = true; needed && receive_one(nullptr);) {
    any = true;
    std::lock_guard lock(receive_mutex_);
    needed = !awaited_;
  }
  if (link_.state() == link::Link::State::detached) reconnect();
  std::unique_lock lock(receive_mutex_);
  pass_on_role(lock);
  return any;
}

void ConnectedSession::thread_sleep(std::chrono::nanoseconds at_most) {
  const transport::Nanoseconds sleep = until_poll(std::min<std::chrono::nanoseconds>(kThreadSleep, at_most));
  unsigned interest = transport::kWoken;
  {
    std::lock_guard lock(receive_mutex_);
    // While callers receive, a poll of the connection would only wake this thread for their replies.
    thread_awaits_role_ = receiving_ || awaited_;
    if (!thread_awaits_role_) interest |= transport::kReadable;
  }
  if (outgoing_.thread_falls_asleep()) {
    link_.wait(interest, sleep);
    outgoing_.thread_woke();
  } else {
    // The connection is not writable, so this thread need not wake up for more posted frames.
    link_.wait(interest | transport::kWritable, sleep);
  }
  std::lock_guard lock(receive_mutex_);
  thread_awaits_role_ = false;
}

}  // namespace gpuwire::client
