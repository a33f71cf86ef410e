// ControlClient is the commands' end of the control socket: blocking, one request at a time.
#pragma once

#include <filesystem>
#include <string>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/client/metrics_json.hpp"

namespace gpuwire::server {

class ControlClient {
 public:
  // The error names path and cause; errno is set if connect() failed.
  static tl::expected<ControlClient, std::string> connect(const std::filesystem::path& path);

  // Sends a request and waits for its answer, kControlAnswerMs at most. An {"ok":false} answer is an error with the
  // server's text.
  tl::expected<Json, std::string> ask(const Json& request) { return ask(request, kControlAnswerMs); }
  tl::expected<Json, std::string> ask(const Json& request, uint32_t timeout_ms);
  tl::expected<Snapshot, std::string> snapshot();

  // The next line of a watch; `timeout_ms`: the longest wait for it.
  tl::expected<Json, std::string> next_answer(int timeout_ms);
  // Readable when more has arrived.
  int descriptor() const { return socket_.get(); }

 private:
  OwnedDescriptor socket_;
  std::string received_;
};

}  // namespace gpuwire::server
