// The server's side of the simulated program's calls.
#include <capnp/message.h>

#include "schema/session.capnp.h"
#include "server/replay/call/reply.hpp"
#include "test/simulation/world.hpp"

namespace gpuwire::simulation {

namespace {

// One scenario runs at a time; set before its executor starts.
Executed* g_executed = nullptr;
Verdict* g_verdict = nullptr;

uint64_t begin(server::Call& call) {
  uint64_t number = call.message.getRoot<schema::Source>().getBytes();
  std::lock_guard lock(g_executed->mutex);
  g_executed->numbers.push_back(number);
  return number;
}

std::shared_ptr<std::vector<std::byte>> bulk_of(uint64_t number) {
  auto bytes = std::make_shared<std::vector<std::byte>>(answer_bytes(number));
  fill(number, *bytes);
  return bytes;
}

bool read_bulk(server::Call& call, uint64_t number, std::vector<std::byte>& bytes) {
  bytes.resize(call.bulk.remaining());
  if (!call.bulk.read(bytes)) return false;
  if (!is_bulk_of(number, bytes)) g_verdict->fail("bulk of call " + std::to_string(number) + " arrived wrong");
  return true;
}

void note(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  std::vector<std::byte> bytes;
  if (read_bulk(call, number, bytes)) finish(replay, call, CUDA_SUCCESS);
}

void echo(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  auto bytes = std::make_shared<std::vector<std::byte>>();
  if (!read_bulk(call, number, *bytes)) return;
  call.answered = true;
  send_result(replay, call.header.sequence, CUDA_SUCCESS, *bytes, bytes);
}

void later(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  call.answered = true;
  replay.wait_elsewhere([&replay, number, sequence = call.header.sequence] {
    auto bytes = bulk_of(number);
    send_result(replay, sequence, CUDA_SUCCESS, *bytes, bytes);
  });
}

void notice(server::Replay& replay, server::Call& call) {
  uint64_t number = begin(call);
  auto bytes = bulk_of(number);
  server::SmallMessage<> message;
  message.root<schema::CopyData>().setSequence(number);
  replay.outbox().notice_kept(wire::NoticeOrdinal::copy_data, *message, *bytes, bytes);
}

constexpr server::ReplayEntry kEntries[] = {
    {.function = note, .name = "note", .posted = true, .bulk_bytes_max = wire::kBulkBytesMax},
    {.function = echo, .name = "echo", .bulk_bytes_max = wire::kBulkBytesMax},
    {.function = later, .name = "later"},
    {.function = notice, .name = "notice", .posted = true}};

}  // namespace

void set_scene(Executed* executed, Verdict* verdict) {
  g_executed = executed;
  g_verdict = verdict;
}

server::CallTable server_calls() {
  server::CallTable table{};
  for (size_t i = 0; i < std::size(kEntries); ++i) table[uint32_t(Ordinal::note) + i] = &kEntries[i];
  return table;
}

}  // namespace gpuwire::simulation
