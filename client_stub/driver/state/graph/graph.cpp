#include "client_stub/driver/state/graph/graph.hpp"

#include <algorithm>
#include <span>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"

namespace gpuwire::client {

NodeStorage& NodeStorages::of(uint64_t node) {
  MutexLock lock(mutex_);
  auto& found = by_node_[node];
  if (!found) found = std::make_unique<NodeStorage>();
  return *found;
}

void NodeStorages::forget(uint64_t node) noexcept {
  MutexLock lock(mutex_);
  by_node_.erase(node);
}

void forget_graph(const Caller& caller, uint64_t owner) {
  ServerSession& server = *caller.server;
  server.user_objects.release(owner);
  std::vector<uint64_t> nodes, inner;
  server.graph_records.forget(owner, nodes, inner);
  for (uint64_t node : nodes) server.node_storages.forget(node);
  // Both sides drop the same handles, in this order, so that a number is not reused too early.
  for (size_t at = 0; at < nodes.size() || (at == 0 && !inner.empty()); at += wire::kListItemsMax) {
    size_t count = std::min<size_t>(nodes.size() - at, wire::kListItemsMax);
    size_t graphs = at == 0 ? std::min<size_t>(inner.size(), wire::kListItemsMax) : 0;
    CUresult error = send::post_graph_forget(
        *caller.session, caller.context,
        {.nodes = std::span(nodes).subspan(at, count), .graphs = std::span(inner).first(graphs)});
    if (error) return;  // the session is over
  }
  for (uint64_t node : nodes) handles().forget(wire::HandleKind::graph_node, node);
  for (uint64_t graph : inner) handles().forget(wire::HandleKind::graph, graph);
}

void note_graph_memory(const Caller& caller, CUdeviceptr address, size_t bytes) {
  AddressRange range{.base = address, .bytes = bytes, .kind = RangeKind::graph, .server = caller.server};
  range.reserved = address_reservations().reserve(address, bytes);
  range.context = caller.context_handle;
  range.device = caller.state ? caller.state->device : -1;
  publish_range(range);
}

}  // namespace gpuwire::client
