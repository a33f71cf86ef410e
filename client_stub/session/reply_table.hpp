// The calls in flight: the waiting thread of each reply, and the destination of its bytes. Plain data; the owner has
// the lock.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <vector>

#include <capnp/common.h>

#include "client_stub/session/session.hpp"
#include "protocol/threads/condition.hpp"

namespace gpuwire::client {

struct PendingCall {
  uint64_t sequence = 0;
  BulkSink sink;
  // The end of the frame in the outgoing stream; only the caller's thread uses it.
  uint64_t bytes_end = 0;
  // Its bulk is sent from the caller's memory; only the caller's thread uses it.
  bool external = false;
  // ThreadTraffic::waits when it was begun.
  uint64_t begun_after = 0;
  // The receiving thread is writing into `sink`.
  bool filling = false;
  // The reply is in `reply`, unless the waiting thread has read it itself.
  bool arrived = false;
  // The waiting thread is on `changed`.
  bool asleep = false;
  // No thread waits for it at present.
  bool aside = false;
  // No thread will wait for it: its thread has left the call.
  bool left = false;
  // The calling thread.
  pthread_t thread{};
  // The bytes of the whole frame, set with `arrived`.
  uint64_t reply_bytes = 0;
  // Fewer bytes came than the sink takes; set with `arrived`.
  bool lacks_bytes = false;
  std::vector<capnp::word> reply;
  Condition changed;
  PendingCall* older = nullptr;
  PendingCall* newer = nullptr;
};

class ReplyTable {
 public:
  // Returns null without memory. Sequences ascend.
  PendingCall* add(uint64_t sequence, const BulkSink& sink);
  // Replies arrive nearly in the order of the calls, so the search begins with the oldest.
  PendingCall* find(uint64_t sequence);
  void remove(PendingCall* call);
  // Calls that are set aside are found after all others, and are not in the list of oldest().
  void set_aside(PendingCall* call, bool aside);
  size_t size() const { return size_; }
  PendingCall* oldest() const { return calls_.oldest; }
  // Visits all calls, including those set aside. `visit` may remove the call that it gets.
  template <class Visit>
  void for_each(Visit visit) {
    for (PendingCall* first : {calls_.oldest, aside_.oldest})
      for (PendingCall *call = first, *next = nullptr; call; call = next) {
        next = call->newer;
        visit(call);
      }
  }

 private:
  struct List {
    PendingCall* oldest = nullptr;
    PendingCall* newest = nullptr;

    void append(PendingCall* call);
    void take_out(PendingCall* call);
    PendingCall* find(uint64_t sequence) const;
  };
  List& list_of(const PendingCall* call) { return call->aside ? aside_ : calls_; }

  List calls_, aside_;
  size_t size_ = 0;
  std::vector<std::unique_ptr<PendingCall>> all_;
  std::vector<PendingCall*> free_;
};

}  // namespace gpuwire::client
