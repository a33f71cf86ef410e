// Builds the generated notices (generated/server/session_notices.hpp) in one segment. A small notice needs no
// allocation.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <capnp/message.h>

#include "server/replay/replay.hpp"

namespace gpuwire::server {

template <class Schema, class Message>
void send_notice(Outbox& outbox, wire::NoticeOrdinal ordinal, const Message& message,
                 std::span<const std::byte> bulk = {}, std::shared_ptr<const void> keeper = nullptr) {
  constexpr size_t kStackWords = 64;
  const size_t words = words_of(message);
  capnp::word stack[kStackWords] = {};
  std::vector<capnp::word> heap(words > kStackWords ? words : 0);
  capnp::MallocMessageBuilder builder(heap.empty() ? kj::arrayPtr(stack, kStackWords)
                                                   : kj::arrayPtr(heap.data(), heap.size()));
  write(message, builder.template initRoot<Schema>());
  if (keeper) return outbox.notice_kept(ordinal, builder, bulk, std::move(keeper));
  outbox.notice(ordinal, builder, bulk);
}

}  // namespace gpuwire::server
