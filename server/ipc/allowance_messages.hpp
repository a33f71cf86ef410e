// A worker asks the broker to raise its tenant's allowance: IpcMessageKind::memory_wanted, memory_answer.
#pragma once

#include <cstring>

#include "server/ipc/ipc_message.hpp"

namespace gpuwire::server {

// The id of both messages: which question it is, and how many bytes.
inline IpcMessage memory_wanted(uint32_t column, uint64_t question, uint64_t bytes) {
  IpcMessage message;
  message.kind = IpcMessageKind::memory_wanted;
  message.number = column;
  std::memcpy(message.id.data(), &question, sizeof question);
  std::memcpy(message.id.data() + sizeof question, &bytes, sizeof bytes);
  return message;
}
inline uint64_t question_number(const IpcMessage& message) {
  uint64_t question = 0;
  std::memcpy(&question, message.id.data(), sizeof question);
  return question;
}
inline uint64_t wanted_bytes(const IpcMessage& message) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, message.id.data() + sizeof bytes, sizeof bytes);
  return bytes;
}

}  // namespace gpuwire::server
