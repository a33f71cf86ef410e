// Whole graphs. The calls keep the stub's records of the graphs up to date.
#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/graph/graph.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace hand {
namespace {

uint64_t word_of(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

// The maximum of a graph's text. A longer text would be a fault of the server, and is cut off.
constexpr size_t kTextBytesMax = 64u << 20;

CUresult graph_text(const Caller& caller, CUgraph graph, unsigned flags, std::string& out) {
  if (!known_handle(wire::HandleKind::graph, word_of(graph))) return CUDA_ERROR_INVALID_VALUE;
  uint64_t whole = 0;
  do {
    size_t before = out.size();
    CUresult result = send::call_graph_text(
        *caller.session, caller.context, {.graph = word_of(graph), .flags = flags, .offset = before},
        [&](schema::GraphTextReply::Reader reply) {
          whole = reply.getBytes();
          out.append(reinterpret_cast<const char*>(reply.getText().begin()), reply.getText().size());
        });
    if (result) return result;
    if (out.size() == before) break;
  } while (out.size() < whole && out.size() < kTextBytesMax);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphAddChildGraphNode(const Caller& caller, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count, CUgraph child) {
  if (CUresult error = forward::cuGraphAddChildGraphNode(caller, out, graph, dependencies, count, child)) return error;
  ServerSession& server = *caller.server;
  server.graph_records.copy(word_of(child), word_of(graph), word_of(*out));
  server.user_objects.copy(word_of(child), word_of(graph));
  server.graph_records.note_nodes(word_of(graph), {out, 1});
  return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(const Caller& caller, CUgraphNode node, CUgraph* out) {
  if (CUresult error = forward::cuGraphChildGraphNodeGetGraph(caller, node, out)) return error;
  GraphRecords& records = caller.server->graph_records;
  if (uint64_t graph = records.graph_of(word_of(node))) records.note_inner(graph, word_of(*out));
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(const Caller& caller, CUgraph* out, CUgraph original) {
  if (CUresult error = forward::cuGraphClone(caller, out, original)) return error;
  ServerSession& server = *caller.server;
  server.graph_records.copy(word_of(original), word_of(*out));
  server.user_objects.copy(word_of(original), word_of(*out));
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(const Caller& caller, CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  if (CUresult error = forward::cuGraphNodeFindInClone(caller, out, original, clone)) return error;
  caller.server->graph_records.rename(word_of(clone), word_of(original), word_of(*out));
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(const Caller& caller, CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (CUresult error = forward::cuGraphGetNodes(caller, graph, nodes, count)) return error;
  if (nodes) caller.server->graph_records.note_nodes(word_of(graph), {nodes, *count});
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(const Caller& caller, CUgraph graph, CUgraphNode* nodes, size_t* count) {
  if (CUresult error = forward::cuGraphGetRootNodes(caller, graph, nodes, count)) return error;
  if (nodes) caller.server->graph_records.note_nodes(word_of(graph), {nodes, *count});
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(const Caller& caller, CUgraphNode node) {
  if (CUresult error = forward::cuGraphDestroyNode(caller, node)) return error;
  caller.server->graph_records.forget_node(word_of(node));
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(const Caller& caller, CUgraph graph) {
  if (caller.server->captures.has_graph(word_of(graph))) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult result = forward::cuGraphDestroy(caller, graph);
  if (result == CUDA_SUCCESS) forget_graph(caller, word_of(graph));
  return result;
}

namespace {

void made(ServerSession& server, CUgraph graph, CUgraphExec exec) {
  server.graph_records.copy(word_of(graph), word_of(exec));
  server.user_objects.copy(word_of(graph), word_of(exec));
}

}  // namespace

// --- executable graphs ---------------------------------------------------------------------------------------------

// Launches from the device are refused: the kernel would need the server's handle of the graph, and the program has the
// client's.
CUresult cuGraphInstantiateWithFlags(const Caller& caller, CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = forward::cuGraphInstantiateWithFlags(caller, out, graph, flags)) return error;
  made(*caller.server, graph, *out);
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(const Caller& caller, CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters, bool per_thread) {
  if (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  // The stream is used for an upload only. Without an upload the driver ignores the stream, even the NULL stream beside
  // a capture (as measured on driver 580), so the message names another one.
  CUDA_GRAPH_INSTANTIATE_PARAMS asked = *parameters;
  if (!(asked.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) asked.hUploadStream = CU_STREAM_PER_THREAD;
  CUresult result = forward::cuGraphInstantiateWithParams(caller, out, graph, &asked, per_thread);
  asked.hUploadStream = parameters->hUploadStream;
  *parameters = asked;
  if (result == CUDA_SUCCESS) made(*caller.server, graph, *out);
  return result;
}

CUresult cuGraphInstantiate_v2(const Caller& caller, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                               char* log, size_t log_bytes) {
  if (error_node) *error_node = nullptr;
  if (log && log_bytes) *log = 0;
  if (CUresult error = forward::cuGraphInstantiate_v2(caller, out, graph, error_node, log, log_bytes)) return error;
  made(*caller.server, graph, *out);
  return CUDA_SUCCESS;
}

namespace {

void updated(ServerSession& server, CUgraph graph, CUgraphExec exec) {
  server.graph_records.take_over(word_of(graph), word_of(exec));
  server.user_objects.replace(word_of(graph), word_of(exec));
}

}  // namespace

CUresult cuGraphExecUpdate(const Caller& caller, CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result) {
  if (CUresult error = forward::cuGraphExecUpdate(caller, exec, graph, error_node, result)) return error;
  updated(*caller.server, graph, exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(const Caller& caller, CUgraphExec exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo* info) {
  if (CUresult error = forward::cuGraphExecUpdate_v2(caller, exec, graph, info)) return error;
  updated(*caller.server, graph, exec);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecChildGraphNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node, CUgraph child) {
  if (CUresult error = forward::cuGraphExecChildGraphNodeSetParams(caller, exec, node, child)) return error;
  ServerSession& server = *caller.server;
  server.graph_records.replace(word_of(exec), word_of(node), {});
  server.graph_records.copy(word_of(child), word_of(exec), word_of(node));
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(const Caller& caller, CUgraphExec exec) {
  if (!known_handle(wire::HandleKind::graph_exec, word_of(exec))) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = forward::cuGraphExecDestroy(caller, exec);
  if (result == CUDA_SUCCESS) forget_graph(caller, word_of(exec));
  return result;
}

CUresult cuGraphAddMemAllocNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  CUresult result = forward::cuGraphAddMemAllocNode(caller, out, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) {
    note_graph_memory(caller, parameters->dptr, parameters->bytesize);
    caller.server->graph_records.note_allocation(word_of(graph), parameters->dptr);
    caller.server->graph_records.note_nodes(word_of(graph), {out, 1});
  }
  return result;
}

CUresult cuGraphAddMemFreeNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                               size_t count, CUdeviceptr address) {
  if (CUresult error = forward::cuGraphAddMemFreeNode(caller, out, graph, dependencies, count, address)) return error;
  ServerSession& server = *caller.server;
  server.graph_records.note_free(word_of(graph), address);
  server.graph_records.note_nodes(word_of(graph), {out, 1});
  return CUDA_SUCCESS;
}

// The server makes the text, and the client writes the file.
CUresult cuGraphDebugDotPrint(const Caller& caller, CUgraph graph, const char* path, unsigned int flags) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  if (CUresult error = graph_text(caller, graph, flags, text)) return error;
  FILE* file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  written = std::fclose(file) == 0 && written;
  return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // namespace hand
}  // namespace gpuwire::client
