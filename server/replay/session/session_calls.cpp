// The table of the session's own calls, and the three that measure the connection.
#include <array>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/base/zeroed_memory.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/session_handlers.hpp"

namespace gpuwire::server {

namespace {

constexpr size_t kSinkPieceBytes = 256u << 10;

void ping(Replay& replay, Call& call) { finish(replay, call, CUDA_SUCCESS); }

void sink(Replay& replay, Call& call) {
  std::vector<std::byte> piece(std::min<uint64_t>(call.bulk.remaining(), kSinkPieceBytes));
  while (call.bulk.remaining() > 0) {
    if (!call.bulk.read(std::span(piece).first(std::min<uint64_t>(call.bulk.remaining(), piece.size())))) return;
  }
  finish(replay, call, CUDA_SUCCESS);
}

void source(Replay& replay, Call& call) {
  uint64_t bytes = call.message.getRoot<schema::Source>().getBytes();
  if (bytes > wire::kBulkBytesMax) throw ProtocolFault{"source: more bytes than a reply may carry"};
  // Never written, so it takes no memory, and filling it is not measured.
  static const ZeroedMemory zeros(wire::kBulkBytesMax);
  if (!zeros) return finish(replay, call, CUDA_ERROR_OUT_OF_MEMORY);
  call.answered = true;
  // It stays for ever, which a keeper of nothing says.
  static const auto kept = std::make_shared<const char>();
  send_result(replay, call.header.sequence, CUDA_SUCCESS, zeros.bytes().first(bytes), kept);
}

constexpr auto kTable = [] {
  std::array<ReplayEntry, unsigned(wire::SessionOrdinal::link_destroy) + 1> table{};
  auto set = [&](wire::SessionOrdinal ordinal, const char* name, ReplayFunction function, bool posted) {
    table[unsigned(ordinal)] = {function, name, posted};
  };
  set(wire::SessionOrdinal::ping, "ping", &server::ping, false);
  set(wire::SessionOrdinal::sink, "sink", &server::sink, false);
  set(wire::SessionOrdinal::source, "source", &server::source, false);
  set(wire::SessionOrdinal::launch, "launch", &server::launch, true);
  set(wire::SessionOrdinal::copy_to_device, "copy_to_device", &server::copy_to_device, true);
  set(wire::SessionOrdinal::copy_from_device, "copy_from_device", &server::copy_from_device, true);
  set(wire::SessionOrdinal::copy_2d_to_device, "copy_2d_to_device", &server::copy_2d_to_device, true);
  set(wire::SessionOrdinal::copy_2d_from_device, "copy_2d_from_device", &server::copy_2d_from_device, true);
  set(wire::SessionOrdinal::module_offer, "module_offer", &server::module_offer, false);
  set(wire::SessionOrdinal::module_data, "module_data", &server::module_data, true);
  set(wire::SessionOrdinal::module_load, "module_load", &server::module_load, false);
  set(wire::SessionOrdinal::module_unload, "module_unload", &server::module_unload, true);
  set(wire::SessionOrdinal::module_function, "module_function", &server::module_function, false);
  set(wire::SessionOrdinal::module_global, "module_global", &server::module_global, false);
  set(wire::SessionOrdinal::module_functions, "module_functions", &server::module_functions, false);
  set(wire::SessionOrdinal::watch_event, "watch_event", &server::watch_event, true);
  set(wire::SessionOrdinal::watch_stream, "watch_stream", &server::watch_stream, true);
  set(wire::SessionOrdinal::host_function, "host_function", &server::host_function, true);
  set(wire::SessionOrdinal::host_function_done, "host_function_done", &server::host_function_done, true);
  table[unsigned(wire::SessionOrdinal::host_function_done)].out_of_turn = true;
  set(wire::SessionOrdinal::retain_primary, "retain_primary", &server::retain_primary, true);
  set(wire::SessionOrdinal::release_primary, "release_primary", &server::release_primary, true);
  set(wire::SessionOrdinal::reset_primary, "reset_primary", &server::reset_primary, false);
  set(wire::SessionOrdinal::green_create, "green_create", &server::green_create, false);
  set(wire::SessionOrdinal::green_destroy, "green_destroy", &server::green_destroy, false);
  set(wire::SessionOrdinal::region_create, "region_create", &server::region_create, false);
  set(wire::SessionOrdinal::region_destroy, "region_destroy", &server::region_destroy, true);
  set(wire::SessionOrdinal::region_write, "region_write", &server::region_write, true);
  set(wire::SessionOrdinal::region_share, "region_share", &server::region_share, false);
  set(wire::SessionOrdinal::share_export, "share_export", &server::share_export, false);
  set(wire::SessionOrdinal::share_import, "share_import", &server::share_import, false);
  set(wire::SessionOrdinal::share_withdraw, "share_withdraw", &server::share_withdraw, true);
  set(wire::SessionOrdinal::import_pool_pointer, "import_pool_pointer", &server::import_pool_pointer, false);
  set(wire::SessionOrdinal::link_create, "link_create", &server::link_create, false);
  set(wire::SessionOrdinal::link_add, "link_add", &server::link_add, false);
  set(wire::SessionOrdinal::link_complete, "link_complete", &server::link_complete, false);
  set(wire::SessionOrdinal::link_image, "link_image", &server::link_image, false);
  set(wire::SessionOrdinal::link_destroy, "link_destroy", &server::link_destroy, false);
  table[unsigned(wire::SessionOrdinal::region_write)].out_of_turn = true;
  set(wire::SessionOrdinal::managed_write, "managed_write", &server::managed_write, true);
  table[unsigned(wire::SessionOrdinal::managed_write)].out_of_turn = true;
  set(wire::SessionOrdinal::managed_read, "managed_read", &server::managed_read, false);
  table[unsigned(wire::SessionOrdinal::managed_read)].out_of_turn = true;
  set(wire::SessionOrdinal::graph_memory_create, "graph_memory_create", &server::graph_memory_create, false);
  set(wire::SessionOrdinal::graph_memory_destroy, "graph_memory_destroy", &server::graph_memory_destroy, true);
  set(wire::SessionOrdinal::graph_memory_write, "graph_memory_write", &server::graph_memory_write, true);
  table[unsigned(wire::SessionOrdinal::graph_memory_write)].out_of_turn = true;
  set(wire::SessionOrdinal::graph_launch, "graph_launch", &server::graph_launch, true);
  set(wire::SessionOrdinal::graph_node, "graph_node", &server::graph_node, false);
  set(wire::SessionOrdinal::graph_forget, "graph_forget", &server::graph_forget, true);
  set(wire::SessionOrdinal::graph_text, "graph_text", &server::graph_text, false);
  set(wire::SessionOrdinal::capture_info, "capture_info", &server::capture_info, false);
  return table;
}();

}  // namespace

std::span<const ReplayEntry> session_replay_table() { return kTable; }

}  // namespace gpuwire::server
