// Graphs as wholes: the stub's records of them follow them.
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
namespace custom {
namespace {

uint64_t word_of(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

// How much of a graph's text is taken; past it there is an error at the other side.
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

// Enters, calls, handles success, leaves.
template <class Call, class Then>
CUresult forwarded(Needs needs, Call&& call, Then&& then) {
  Caller caller = enter(needs);
  if (caller.error) return caller.error;
  CUresult result = call(caller);
  if (result == CUDA_SUCCESS) then(*caller.server);
  return leave(caller, result);
}

}  // namespace

CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) {
        return forward::cuGraphAddChildGraphNode(caller, out, graph, dependencies, count, child);
      },
      [&](ServerSession& server) {
        server.graph_records.copy(word_of(child), word_of(graph), word_of(*out));
        server.user_objects.copy(word_of(child), word_of(graph));
        server.graph_records.note_nodes(word_of(graph), {out, 1});
      });
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* out) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphChildGraphNodeGetGraph(caller, node, out); },
      [&](ServerSession& server) {
        GraphRecords& records = server.graph_records;
        if (uint64_t graph = records.graph_of(word_of(node))) records.note_inner(graph, word_of(*out));
      });
}

CUresult cuGraphClone(CUgraph* out, CUgraph original) {
  return forwarded(
      Needs::initialised, [&](const Caller& caller) { return forward::cuGraphClone(caller, out, original); },
      [&](ServerSession& server) {
        server.graph_records.copy(word_of(original), word_of(*out));
        server.user_objects.copy(word_of(original), word_of(*out));
      });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphNodeFindInClone(caller, out, original, clone); },
      [&](ServerSession& server) { server.graph_records.rename(word_of(clone), word_of(original), word_of(*out)); });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return forwarded(
      Needs::initialised, [&](const Caller& caller) { return forward::cuGraphGetNodes(caller, graph, nodes, count); },
      [&](ServerSession& server) {
        if (nodes) server.graph_records.note_nodes(word_of(graph), {nodes, *count});
      });
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphGetRootNodes(caller, graph, nodes, count); },
      [&](ServerSession& server) {
        if (nodes) server.graph_records.note_nodes(word_of(graph), {nodes, *count});
      });
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
  return forwarded(
      Needs::initialised, [&](const Caller& caller) { return forward::cuGraphDestroyNode(caller, node); },
      [&](ServerSession& server) { server.graph_records.forget_node(word_of(node)); });
}

CUresult cuGraphDestroy(CUgraph graph) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (caller.server->captures.has_graph(word_of(graph))) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult result = forward::cuGraphDestroy(caller, graph);
  if (result == CUDA_SUCCESS) forget_graph(caller, word_of(graph));
  return leave(caller, result);
}

namespace {

void made(ServerSession& server, CUgraph graph, CUgraphExec exec) {
  server.graph_records.copy(word_of(graph), word_of(exec));
  server.user_objects.copy(word_of(graph), word_of(exec));
}

}  // namespace

// --- executable graphs ---------------------------------------------------------------------------------------------

// A kernel that launches the graph would need the server's handle of it, and the program has ours.
CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  return forwarded(
      Needs::context,
      [&](const Caller& caller) { return forward::cuGraphInstantiateWithFlags(caller, out, graph, flags); },
      [&](ServerSession& server) { made(server, graph, *out); });
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters,
                                      bool per_thread) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  // The stream is that of an upload. Without one it is not looked at, so a capture minds nothing if it is the NULL
  // stream (as measured on driver 580): another travels in its place.
  CUDA_GRAPH_INSTANTIATE_PARAMS asked = *parameters;
  if (!(asked.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) asked.hUploadStream = CU_STREAM_PER_THREAD;
  return forwarded(
      Needs::context,
      [&](const Caller& caller) {
        CUresult result = forward::cuGraphInstantiateWithParams(caller, out, graph, &asked, per_thread);
        asked.hUploadStream = parameters->hUploadStream;
        *parameters = asked;
        return result;
      },
      [&](ServerSession& server) { made(server, graph, *out); });
}

CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return forwarded(
      Needs::context,
      [&](const Caller& caller) {
        if (error_node) *error_node = nullptr;
        if (log && log_bytes) *log = 0;
        return forward::cuGraphInstantiate_v2(caller, out, graph, error_node, log, log_bytes);
      },
      [&](ServerSession& server) { made(server, graph, *out); });
}

namespace {

void updated(ServerSession& server, CUgraph graph, CUgraphExec exec) {
  server.graph_records.take_over(word_of(graph), word_of(exec));
  server.user_objects.replace(word_of(graph), word_of(exec));
}

}  // namespace

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, CUgraphExecUpdateResult* result) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphExecUpdate(caller, exec, graph, error_node, result); },
      [&](ServerSession& server) { updated(server, graph, exec); });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphExecUpdate_v2(caller, exec, graph, info); },
      [&](ServerSession& server) { updated(server, graph, exec); });
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
  return forwarded(
      Needs::initialised,
      [&](const Caller& caller) { return forward::cuGraphExecChildGraphNodeSetParams(caller, exec, node, child); },
      [&](ServerSession& server) {
        server.graph_records.replace(word_of(exec), word_of(node), {});
        server.graph_records.copy(word_of(child), word_of(exec), word_of(node));
      });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!known_handle(wire::HandleKind::graph_exec, word_of(exec))) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = forward::cuGraphExecDestroy(caller, exec);
  if (result == CUDA_SUCCESS) forget_graph(caller, word_of(exec));
  return leave(caller, result);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  Caller caller = enter(Needs::living_context);
  if (caller.error) return caller.error;
  CUresult result = forward::cuGraphAddMemAllocNode(caller, out, graph, dependencies, count, parameters);
  if (result == CUDA_SUCCESS) {
    note_graph_memory(caller, parameters->dptr, parameters->bytesize);
    caller.server->graph_records.note_allocation(word_of(graph), parameters->dptr);
    caller.server->graph_records.note_nodes(word_of(graph), {out, 1});
  }
  return leave(caller, result);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                               CUdeviceptr address) {
  return forwarded(
      Needs::living_context,
      [&](const Caller& caller) {
        return forward::cuGraphAddMemFreeNode(caller, out, graph, dependencies, count, address);
      },
      [&](ServerSession& server) {
        server.graph_records.note_free(word_of(graph), address);
        server.graph_records.note_nodes(word_of(graph), {out, 1});
      });
}

// The text is made at the server, and the file here.
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned int flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  if (CUresult error = graph_text(caller, graph, flags, text)) return leave(caller, error);
  FILE* file = std::fopen(path, "we");
  if (!file) return leave(caller, CUDA_ERROR_OPERATING_SYSTEM);
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  written = std::fclose(file) == 0 && written;
  return leave(caller, written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM);
}

}  // namespace custom
}  // namespace gpuwire::client
