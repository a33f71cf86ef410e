// The requests that wait for an answer of another process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/ipc/message.hpp"

namespace gpuwire::server::ipc {

// Requests in flight, by number, each with its waiter. Bounded: a request beyond `max` is not made. The owner of the
// table reports when a waiter's time is over and when the other end is gone; both give the waiter the reason. One
// thread at a time.
template <class Waiter>
class RequestTable {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNoLimit = Clock::time_point::max();

  explicit RequestTable(size_t max) : max_(max) {}

  // A request of this end's. Nothing: as many are under way as may.
  std::optional<RequestId> open(Waiter waiter, Clock::time_point until = kNoLimit) {
    const RequestId number = last_ + 1;
    if (!open_as(number, std::move(waiter), until)) return std::nullopt;
    last_ = number;
    return number;
  }
  // A request whose number somebody else has chosen. False: it is under way already, or there are too many.
  bool open_as(RequestId number, Waiter waiter, Clock::time_point until = kNoLimit) {
    if (requests_.size() >= max_) return false;
    return requests_.try_emplace(number, Request{std::move(waiter), until}).second;
  }

  // Null: there is none; its answer comes too late.
  Waiter* find(RequestId number) {
    auto found = requests_.find(number);
    return found == requests_.end() ? nullptr : &found->second.waiter;
  }
  // It is answered. Nothing: there is none.
  std::optional<Waiter> close(RequestId number) {
    auto request = requests_.extract(number);
    if (!request) return std::nullopt;
    return std::move(request.mapped().waiter);
  }
  // Those for which `which` holds are nobody's any more.
  template <class Which>
  void drop_if(Which&& which) {
    std::erase_if(requests_, [&](const auto& one) { return which(one.second.waiter); });
  }

  // Those whose time is over leave: `late(number, waiter)`. It may use the table.
  template <class Late>
  void expire(Clock::time_point now, Late&& late) {
    for (auto it = requests_.begin(); it != requests_.end();) {
      if (it->second.until > now) {
        ++it;
        continue;
      }
      const RequestId number = it->first;
      auto request = requests_.extract(it);
      late(number, std::move(request.mapped().waiter));
      it = requests_.upper_bound(number);
    }
  }
  // The other end is gone: all of them leave. `abandoned(number, waiter)`; it may use the table.
  template <class Abandoned>
  void abandon(Abandoned&& abandoned) {
    for (auto& [number, request] : std::exchange(requests_, {})) abandoned(number, std::move(request.waiter));
  }

  // Both in the order of their numbers; neither function may use the table. `look(number, waiter)` is true when the
  // request is answered.
  template <class Each>
  void for_each(Each&& each) const {
    for (const auto& [number, request] : requests_) each(number, request.waiter);
  }
  template <class Visit>
  void visit_all(Visit&& visit) {
    std::erase_if(requests_, [&](auto& one) { return visit(one.first, one.second.waiter); });
  }
  template <class Which>
  size_t count_if(Which&& which) const {
    size_t count = 0;
    for (const auto& [number, request] : requests_) count += which(request.waiter);
    return count;
  }
  size_t size() const { return requests_.size(); }
  bool empty() const { return requests_.empty(); }

 private:
  struct Request {
    Waiter waiter;
    Clock::time_point until;
  };
  const size_t max_;
  RequestId last_ = 0;
  std::map<RequestId, Request> requests_;
};

}  // namespace gpuwire::server::ipc
