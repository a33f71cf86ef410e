// The input is data of one of the server's own processes on its socket pair, or a user's request on the control socket
// or to the metrics.
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/eventfd.h>

#include "server/ipc/codec.hpp"
#include "server/control/requests.hpp"
#include "server/metrics/http.hpp"
#include "test/fuzz/frame_fuzz.hpp"

namespace {

using namespace gpuwire::server;

// Decodes a message with descriptors. A valid message can be encoded again, and the result decoded again.
void decode_message(std::string_view bytes, ipc::Speaker speaker) {
  std::vector<OwnedDescriptor> descriptors;
  for (int i = 0; i < 2; ++i) descriptors.emplace_back(::eventfd(0, EFD_CLOEXEC));
  auto message = ipc::decode(std::as_bytes(std::span(bytes)), std::move(descriptors), speaker);
  if (!message) return;
  ipc::Packet packet = ipc::encode(*message);
  if (packet.bytes().size() > ipc::kPacketBytesMax || !ipc::decode(packet.bytes(), {}, speaker)) std::abort();
}

void ask(std::string_view line) {
  ControlSources sources{.snapshot = [] { return Snapshot{}; },
                         .reload = [](bool) { return tl::expected<std::string, ReloadRefused>("nothing"); },
                         .end_session = [](uint64_t, const std::string&) { return false; },
                         .end_tenant = [](const std::string&, const std::string&) { return std::optional<size_t>(0); },
                         .tenants_of_user = [](uid_t) { return std::vector<std::string>{}; },
                         .audit = [](std::string_view, const LogFields&) {}};
  for (bool everything : {false, true}) {
    ControlAnswer answer = answer_request(line, {.uid = 1000, .everything = everything}, sources);
    // The answer has one line for any request.
    if (answer.watch_interval_ms == 0 && dump(answer.json).find('\n') != std::string::npos) std::abort();
  }
  Json json = Json::parse(line, nullptr, false);
  if (!json.is_discarded()) static_cast<void>(snapshot_from_json(json));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  for (auto speaker : {ipc::Speaker::worker, ipc::Speaker::broker, ipc::Speaker::auth_server, ipc::Speaker::keeper,
                       ipc::Speaker::suspender})
    decode_message(text, speaker);
  ask(text);
  if (http_answer(text, [] { return std::string("metrics"); }).empty()) std::abort();
  return 0;
}
