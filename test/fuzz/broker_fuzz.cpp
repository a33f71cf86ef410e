// The input is what a process of the server's own says on its pair of sockets, and what a user of the machine says on
// the control socket or to the metrics.
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/socket.h>

#include "server/ipc/ipc_message.hpp"
#include "server/ipc/inventory.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/control/requests.hpp"
#include "server/metrics/http.hpp"
#include "test/fuzz/frame_fuzz.hpp"

namespace {

using namespace gpuwire::server;

// The message as it comes out of the pair, whatever went in.
void receive(std::string_view bytes) {
  OwnedDescriptor ours, theirs;
  if (!open_ipc_message(ours, theirs)) std::abort();
  if (::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  IpcMessage said;
  if (receive_ipc_message(ours.get(), false, said) != IpcMessageReceived::message) return;
  if (said.socket || !said.more.empty() || said.text.size() > kIpcMessageTextBytesMax) std::abort();
}

void ask(std::string_view line) {
  ControlSources sources{.snapshot = [] { return Snapshot{}; },
                         .reload = [] { return tl::expected<std::string, std::vector<std::string>>("nothing"); },
                         .end_session = [](uint64_t, const std::string&) { return false; },
                         .end_tenant = [](const std::string&, const std::string&) { return size_t{0}; },
                         .tenants_of_user = [](uid_t) { return std::vector<std::string>{}; },
                         .audit = [](std::string_view, const LogFields&) {}};
  for (bool everything : {false, true}) {
    ControlAnswer answer = answer_request(line, {.uid = 1000, .everything = everything}, sources);
    // In one line, whatever was asked.
    if (answer.watch_interval_ms == 0 && dump(answer.json).find('\n') != std::string::npos) std::abort();
  }
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_discarded()) static_cast<void>(snapshot_from_json(json));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  receive(text);
  static_cast<void>(decode_session_spec(text));
  static_cast<void>(decode_inventory(text));
  ask(text);
  if (http_answer(text, [] { return std::string("metrics"); }).empty()) std::abort();
  return 0;
}
