// The helpers of the generated replay functions (generated/server/replay_*.cpp). Every value from a message is checked
// here before it is used: a wrong handle becomes the call's result, a message of the wrong shape ends the session
// (ProtocolFault).
#pragma once

#include <capnp/list.h>
#include <capnp/message.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/api/values.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"
#include "server/replay/call/explain.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// An empty list points here: the driver refuses NULL for some lists even when their count is 0.
alignas(64) inline constexpr unsigned char kNoItems[64] = {};

// The items of a list, which are read in place.
template <class T>
class Items {
 public:
  Items(const T* items, size_t count) noexcept : items_(count ? items : reinterpret_cast<const T*>(kNoItems)) {}
  // The driver's interface is not const-correct everywhere; it does not write to its inputs.
  T* data() const noexcept { return const_cast<T*>(items_); }

 private:
  const T* items_;
};

// Room for a list that the driver fills in; null when the count is 0. Precondition: Incoming::count or Incoming::bytes
// has checked `count`.
template <class T>
class Room {
 public:
  explicit Room(size_t count) : items_(count) {}
  T* data() noexcept { return items_.empty() ? nullptr : items_.data(); }

 private:
  std::vector<T> items_;
};

// A reply of known size in one segment. A small reply needs no allocation.
template <class Results>
class ReplyMessage {
 public:
  // `data_bytes`: the sum over `lists` lists, texts and data. A size beyond a message's limit is our own bug: the
  // counts have been checked.
  ReplyMessage(size_t data_bytes, size_t lists)
      : words_(words(data_bytes, lists)),
        heap_(words_ > kStackWords ? words_ : 0),
        builder_(segment()),
        results_(builder_.template initRoot<Results>()) {}
  typename Results::Builder& results() noexcept { return results_; }
  capnp::MessageBuilder& message() noexcept { return builder_; }

 private:
  static constexpr size_t kStackWords = 64;
  static size_t words(size_t data_bytes, size_t lists) {
    auto size = capnp::_::structSize<Results>();
    return 1 + size.data + size.pointers + (data_bytes + 7) / 8 + 2 * lists;
  }
  kj::ArrayPtr<capnp::word> segment() noexcept {
    return heap_.empty() ? kj::arrayPtr(stack_, words_) : kj::arrayPtr(heap_.data(), heap_.size());
  }

  size_t words_;
  capnp::word stack_[kStackWords] = {};
  std::vector<capnp::word> heap_;
  capnp::MallocMessageBuilder builder_;
  typename Results::Builder results_;
};

// One call being replayed.
class Incoming {
 public:
  // `posted`: the call's class in the description. A frame of kind `called` may carry a posted call, but a frame of
  // kind `posted` never carries a called one.
  Incoming(Replay& replay, Call& call, bool posted) : replay_(replay), call_(call) {
    auto kind = wire::FrameKind(call.header.kind);
    expect(kind == wire::FrameKind::called || (posted && kind == wire::FrameKind::posted),
           "a call in the wrong kind of frame");
  }

  void expect(bool condition, const char* reason = "a list of another length than the call says") const {
    if (!condition) throw ProtocolFault{reason};
  }

  // --- decoding ----------------------------------------------------------------------------------------------------
  uint64_t handle(wire::HandleKind kind, uint64_t handle, bool optional) {
    if (optional && !handle) return 0;
    void* native = nullptr;
    if (!replay_.handles().find(kind, handle, native)) {
      fail(kind == wire::HandleKind::context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE);
      return 0;
    }
    return word(native);
  }
  uint64_t stream(uint64_t handle) {
    if (handle == wire::kStreamNull || handle == wire::kStreamLegacy) return handle;
    return this->handle(wire::HandleKind::stream, handle, false);
  }
  uint64_t function(uint64_t handle) {
    auto kind =
        wire::handle_kind(handle) == wire::HandleKind::kernel ? wire::HandleKind::kernel : wire::HandleKind::function;
    return this->handle(kind, handle, false);
  }
  capnp::Text::Reader text(capnp::Text::Reader text) const {
    expect(text.size() <= wire::kNameBytesMax, "a text over the limit");
    return text;
  }
  void copy(capnp::Data::Reader data, void* out, size_t bytes) const {
    expect(data.size() == bytes, "data of another size than the call says");
    if (bytes) std::memcpy(out, data.begin(), bytes);
  }
  // Counts are checked before anything is allocated for them.
  size_t count(uint64_t count, size_t item_bytes) const {
    expect(count <= wire::kListItemsMax && count * item_bytes <= kDataBytesMax, "a list over the limit");
    return count;
  }
  size_t bytes(uint64_t bytes) const {
    expect(bytes <= kDataBytesMax, "data over the limit");
    return bytes;
  }
  // `bytes`: the result of attribute_bytes(); 0: this side does not know the attribute.
  uint32_t attribute(uint32_t bytes) {
    if (!bytes) fail(CUDA_ERROR_INVALID_VALUE);
    return bytes;
  }
  template <class T>
  Items<T> items(capnp::Data::Reader data, size_t count) const {
    static_assert(alignof(T) <= alignof(capnp::word), "items are read in place");
    expect(data.size() == count * sizeof(T));
    return Items<T>(reinterpret_cast<const T*>(data.begin()), count);
  }
  template <class T>
  Room<T> handles(wire::HandleKind kind, capnp::List<uint64_t>::Reader list, size_t count) {
    expect(list.size() == count);
    Room<T> natives(count);
    for (unsigned i = 0; i < count; ++i) natives.data()[i] = from_word<T>(handle(kind, list[i], false));
    return natives;
  }

  // Returns CUDA_SUCCESS if all arguments were valid and the driver has the function.
  CUresult ready(bool present) const noexcept {
    return error_ ? error_ : present ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  }

  // --- handles after the call --------------------------------------------------------------------------------------
  void insert(wire::HandleKind kind, uint64_t handle, uint64_t native) {
    if (replay_.handles().insert(kind, handle, reinterpret_cast<void*>(native))) return;
    expect(false, replay_.handles().out_of_memory() ? "no host memory is left for another handle"
                                                    : "a new handle that is malformed or taken");
  }
  void erase(wire::HandleKind kind, uint64_t handle) { replay_.handles().erase(kind, handle); }
  // Returns the handle of a driver object: its existing handle, or else `candidate`, which it has from now on. 0: there
  // is no object.
  uint64_t give(wire::HandleKind kind, uint64_t candidate, uint64_t native) {
    if (!native) return 0;
    uint64_t found = known(kind, native);
    if (!found) insert(kind, found = candidate, native);
    return found;
  }
  // Returns the handle of a driver object; 0: it has none.
  uint64_t known(wire::HandleKind kind, uint64_t native) {
    uint64_t found = 0;
    if (kind == wire::HandleKind::stream && native <= wire::kStreamLegacy) return native;
    if (!native) return found;
    replay_.handles().for_each(kind, [&](uint64_t handle, void* candidate) {
      if (!found && word(candidate) == native) found = handle;
    });
    return found;
  }
  // give() for a list; takes the candidates in order.
  template <class T>
  std::vector<uint64_t> give_all(wire::HandleKind kind, capnp::List<uint64_t>::Reader candidates, const T* natives,
                                 size_t count) {
    std::unordered_map<uint64_t, uint64_t> known;
    replay_.handles().for_each(kind, [&](uint64_t handle, void* native) { known.emplace(word(native), handle); });
    std::vector<uint64_t> given(count);
    unsigned next = 0;
    for (size_t i = 0; i < count; ++i) {
      auto [place, fresh] = known.emplace(word(natives[i]), 0);
      if (fresh) {
        place->second = candidates[next++];
        insert(kind, place->second, word(natives[i]));
      }
      given[i] = place->second;
    }
    return given;
  }

  // --- answers -----------------------------------------------------------------------------------------------------
  // Answers a call that has only a result.
  void finish(CUresult result) {
    if (wire::FrameKind(call_.header.kind) == wire::FrameKind::posted) {
      if (result) replay_.fail_posted(call_.header, result);
      return;
    }
    ReplyMessage<schema::Result> message(0, 0);
    reply(message.message(), message.results(), result);
  }
  template <class Results>
  void reply(capnp::MessageBuilder& message, Results&& results, CUresult result) {
    explain(replay_, result);
    results.setResult(int32_t(result));
    results.setDeferred(int32_t(replay_.take_deferred()));
    replay_.outbox().reply(call_.header.sequence, message);
    call_.answered = true;
  }

  // Sets the call's result, unless the call has failed already.
  void fail(CUresult error) noexcept {
    if (!error_) error_ = error;
  }

 private:
  Replay& replay_;
  Call& call_;
  CUresult error_ = CUDA_SUCCESS;
};

// Decodes a structure and its lists from one run of bytes (client_stub/driver/state/call/flat.hpp writes it), and owns
// them while the call runs.
class Flat {
 public:
  explicit Flat(const Incoming& incoming, capnp::Data::Reader data) {
    incoming.expect(data.size() <= kDataBytesMax && data.size() % sizeof(uint64_t) == 0);
    words_.resize(data.size() / sizeof(uint64_t));
    if (!words_.empty()) std::memcpy(words_.data(), data.begin(), data.size());
  }
  void take(const Incoming& incoming, void* value, size_t bytes) {
    if (const void* from = next(incoming, bytes)) std::memcpy(value, from, bytes);
  }
  template <class Item>
  Item* list(const Incoming& incoming, uint64_t count) {
    static_assert(alignof(Item) <= alignof(uint64_t));
    return static_cast<Item*>(next(incoming, incoming.count(count, sizeof(Item)) * sizeof(Item)));
  }
  void end(const Incoming& incoming) const { incoming.expect(used_ == words_.size()); }

 private:
  void* next(const Incoming& incoming, size_t bytes) {
    size_t words = (bytes + 7) / 8;
    incoming.expect(words <= words_.size() - used_);
    void* place = words ? words_.data() + used_ : nullptr;
    used_ += words;
    return place;
  }

  std::vector<uint64_t> words_;
  size_t used_ = 0;
};

inline void set_words(capnp::List<uint64_t>::Builder list, const std::vector<uint64_t>& words) {
  for (unsigned i = 0; i < words.size(); ++i) list.set(i, words[i]);
}

}  // namespace gpuwire::server
