// A fabric without a network: it delivers the script's messages, and discards sent ones.
#include "test/fuzz/rdma_plugin_fuzz.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "protocol/transport/rdma_plugin.hpp"

namespace {

const GpuwireRdmaFuzzScript* g_script = nullptr;
// The bytes of every message.
char g_bytes[1 << 20] = "the bytes of a message";

}  // namespace

struct GpuwireRdmaFabric {};

struct GpuwireRdmaEnd {
  const GpuwireRdmaEvents* events;
  void* user;
  const GpuwireRdmaFuzzScript* script = g_script;
  size_t next = 0;
  bool connected = false;
  int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

namespace {

GpuwireRdmaFabric g_fabric;

unsigned progress(GpuwireRdmaEnd* end) {
  if (!end->connected || !end->script || end->next == end->script->count) return 0;
  const GpuwireRdmaFuzzMessage& message = end->script->messages[end->next++];
  end->events->arrived(end->user, message.header, message.header_bytes, message.waits ? nullptr : g_bytes,
                       message.bytes, const_cast<GpuwireRdmaFuzzMessage*>(&message));
  return 1;
}

const GpuwireRdmaPlugin kPlugin = {
    .version = kGpuwireRdmaVersion,
    .bytes = sizeof(GpuwireRdmaPlugin),
    .open = [](int, char*, size_t) { return &g_fabric; },
    .close_fabric = [](GpuwireRdmaFabric*) {},
    .make = [](GpuwireRdmaFabric*, const GpuwireRdmaEvents* events, void* user, void*, size_t, char*,
               size_t) { return new GpuwireRdmaEnd{.events = events, .user = user}; },
    .address = [](GpuwireRdmaEnd*, void* out, size_t room) -> size_t {
      if (room != 0) *static_cast<char*>(out) = 'a';
      return 1;
    },
    .connect =
        [](GpuwireRdmaEnd* end, const void*, size_t, char*, size_t) {
          end->connected = true;
          return 1;
        },
    .send = [](GpuwireRdmaEnd*, const void*, size_t, const void*, size_t, uint64_t) { return int(kGpuwireRdmaDone); },
    .fetch =
        [](GpuwireRdmaEnd*, void* arrival, void* into, size_t bytes, uint64_t) {
          auto message = static_cast<const GpuwireRdmaFuzzMessage*>(arrival);
          if (bytes != message->bytes || bytes > sizeof g_bytes) return int(kGpuwireRdmaFailed);
          std::memcpy(into, g_bytes, bytes);
          return int(kGpuwireRdmaDone);
        },
    .progress = progress,
    .descriptor = [](GpuwireRdmaEnd* end) { return end->bell; },
    .arm = [](GpuwireRdmaEnd* end) { return int(!end->connected || !end->script || end->next == end->script->count); },
    .close =
        [](GpuwireRdmaEnd* end) {
          ::close(end->bell);
          delete end;
          return 1;
        },
};

}  // namespace

extern "C" {

[[gnu::visibility("default")]] const GpuwireRdmaPlugin* gpuwire_rdma_plugin() { return &kPlugin; }
[[gnu::visibility("default")]] void gpuwire_rdma_fuzz_direct(const GpuwireRdmaFuzzScript* script) { g_script = script; }

}  // extern "C"
