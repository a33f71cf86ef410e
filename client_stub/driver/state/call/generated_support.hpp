// The helpers of the generated forward functions (generated/client/forward_*.cpp).
#pragma once

#include <capnp/list.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/session/call.hpp"
#include "protocol/api/values.hpp"
#include "protocol/wire/handle.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

inline bool server_knows(const Caller& caller, uint32_t ordinal) noexcept {
  return caller.session->facts().knows(ordinal);
}

template <class Handle>
inline bool known_handles(wire::HandleKind kind, const Handle* handles, size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    if (!known_handle(kind, word(handles[i]))) return false;
  }
  return true;
}

template <class Handle>
inline void set_handles(capnp::List<uint64_t>::Builder list, const Handle* handles) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, word(handles[i]));
}

// Returns data of a reply. Throws kj::Exception if the size is not the one that the call implies.
inline void copy_exactly(capnp::Data::Reader data, void* out, size_t bytes) {
  KJ_REQUIRE(data.size() == bytes, "a reply's data have another size than the call implies");
  if (bytes) std::memcpy(out, data.begin(), bytes);
}
inline void copy_at_most(capnp::Data::Reader data, void* out, size_t bytes) {
  KJ_REQUIRE(data.size() <= bytes, "a reply's list is longer than the room for it");
  if (out && data.size()) std::memcpy(out, data.begin(), data.size());
}

// Chooses handles for objects that the server may have to number. The server uses one handle for each object without a
// number; unused handles are removed again.
class Candidates {
 public:
  explicit Candidates(wire::HandleKind kind) noexcept : kind_(kind) {}
  Candidates(const Candidates&) = delete;
  Candidates& operator=(const Candidates&) = delete;
  ~Candidates() {
    for (uint64_t handle : handles_) {
      if (handle) forget_handle(kind_, handle);
    }
  }

  bool create(const Caller& caller, size_t count) {
    handles_.reserve(count);
    while (handles_.size() < count) {
      uint64_t handle = create_handle(caller, kind_);
      if (!handle) return false;
      handles_.push_back(handle);
    }
    return true;
  }

  const uint64_t* handles() const noexcept { return handles_.data(); }

  // Returns the only handle, if the server has used it.
  void take_if(uint64_t given) noexcept {
    if (!handles_.empty() && handles_[0] == given) handles_[0] = 0;
  }

  template <class Handle>
  void take(capnp::List<uint64_t>::Reader given, Handle* out) {
    KJ_REQUIRE(given.size() <= handles_.size(), "a reply's list is longer than the room for it");
    // The server takes candidates in order, so one pass finds those that it used.
    size_t next = 0;
    for (unsigned i = 0; i < given.size(); ++i) {
      out[i] = from_word<Handle>(given[i]);
      if (next < handles_.size() && given[i] == handles_[next]) handles_[next++] = 0;
    }
  }

 private:
  wire::HandleKind kind_;
  std::vector<uint64_t> handles_;
};

}  // namespace gpuwire::client
