// The pending requests to another process.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/ipc/message.hpp"

namespace gpuwire::server::ipc {

// Requests in flight, by number, each with its waiter. At most `max` requests. The owner of the table reports when a
// waiter's time is over and when the other end is gone; the waiter gets the reason in both cases. One thread at a time.
template <class Waiter>
class RequestTable {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNoLimit = Clock::time_point::max();

  explicit RequestTable(size_t max) : max_(max) {}

  // Adds a request of this end. Nothing: the table is full.
  std::optional<RequestId> open(Waiter waiter, Clock::time_point until = kNoLimit) {
    const RequestId number = last_ + 1;
    if (!open_as(number, std::move(waiter), until)) return std::nullopt;
    last_ = number;
    return number;
  }
  // Adds a request whose number another process has chosen. False: the number is pending already, or the table is full.
  bool open_as(RequestId number, Waiter waiter, Clock::time_point until = kNoLimit) {
    if (requests_.size() >= max_) return false;
    return requests_.try_emplace(number, Request{std::move(waiter), until}).second;
  }

  // Null: the request is not pending; its answer arrives too late.
  Waiter* find(RequestId number) {
    auto found = requests_.find(number);
    return found == requests_.end() ? nullptr : &found->second.waiter;
  }
  // Removes an answered request. Nothing: the request is not pending.
  std::optional<Waiter> close(RequestId number) {
    auto request = requests_.extract(number);
    if (!request) return std::nullopt;
    return std::move(request.mapped().waiter);
  }
  // Removes the requests for which `which` is true.
  template <class Which>
  void drop_if(Which&& which) {
    std::erase_if(requests_, [&](const auto& one) { return which(one.second.waiter); });
  }

  // Removes the requests whose time is over, and calls `late(number, waiter)` for each, which may use the table.
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
  // Removes all requests when the other end is gone, and calls `abandoned(number, waiter)` for each, which may use the
  // table.
  template <class Abandoned>
  void abandon(Abandoned&& abandoned) {
    for (auto& [number, request] : std::exchange(requests_, {})) abandoned(number, std::move(request.waiter));
  }

  // Both visit the requests in the order of their numbers; neither function may use the table. `look(number, waiter)`
  // returns whether the request is answered.
  template <class Each>
  void for_each(Each&& each) const {
    for (const auto& [number, request] : requests_) each(number, request.waiter);
  }
  template <class Visit>
  void visit_all(Visit&& visit) {
    for (auto it = requests_.begin(); it != requests_.end();)
      it = visit(it->first, it->second.waiter) ? requests_.erase(it) : std::next(it);
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
