// The input is a server's data after it has admitted a client: its welcome, then replies and notices, in pieces, then
// the end. For any input the session begins, or has a reason of one line why not. Its calls return, bulk stays within
// the requested size, and the cause of its end is one line without control characters.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "client_stub/session/call.hpp"
#include "client_stub/session/connected_session.hpp"
#include "schema/session.capnp.h"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/recorded.hpp"

// The sanitizers' own; null without them.
extern "C" [[gnu::weak]] void __sanitizer_set_report_fd(void* file);

using namespace gpuwire;

namespace {

constexpr size_t kRoom = 64;
constexpr unsigned kCalls = 4;

class Notices final : public client::NoticeHandler {
 public:
  void notice(wire::NoticeOrdinal, capnp::MessageReader&) override {}
  client::BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader&, size_t bulk_bytes) override {
    if (ordinal == wire::NoticeOrdinal::copy_data) return {room_, sizeof room_};
    text_.resize(bulk_bytes);
    return {text_.data(), text_.size()};
  }
  void bulk_stored(wire::NoticeOrdinal, capnp::MessageReader&, std::span<const std::byte>) override {}
  void ended(CUresult result, std::string_view reason) override {
    if (result == CUDA_SUCCESS) std::abort();
    test::check_line(std::string(reason));
  }

 private:
  std::byte room_[kRoom];
  std::vector<std::byte> text_;
};

// Each session reports its end on standard error, which would take most of the time; faults are reported there as well.
bool silence() {
  if (__sanitizer_set_report_fd) __sanitizer_set_report_fd(reinterpret_cast<void*>(intptr_t(::dup(STDERR_FILENO))));
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0 || ::dup2(nowhere, STDERR_FILENO) < 0) std::abort();
  return true;
}

CUresult call(client::Session& session, const client::BulkSink& sink) {
  return client::call<schema::Source, schema::Result>(
      session, uint32_t(wire::SessionOrdinal::source), 0, client::message_words<schema::Source>(),
      [](auto params) { params.setBytes(kRoom); }, [](auto) {}, {}, sink);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool silent = silence();
  if (size == 0) return 0;
  Notices notices;
  auto session = client::ConnectedSession::greet(
      std::make_unique<test::Recorded>(std::as_bytes(std::span(data + 1, size - 1)), 1 + size_t(data[0])), "gpu7:4747",
      notices);
  if (!session) {
    test::check_line(session.error().cause);
    return 0;
  }
  // Each sink has guard bytes after its space, which may not be overwritten.
  std::byte room[kRoom + 1];
  room[kRoom] = std::byte{0x5a};
  for (unsigned i = 0; i < kCalls && (*session)->state() == CUDA_SUCCESS; ++i) {
    call(**session, {room, i % 2 ? kRoom : 0});
    (*session)->poll();
  }
  if (room[kRoom] != std::byte{0x5a}) std::abort();
  (*session)->close();
  return 0;
}
