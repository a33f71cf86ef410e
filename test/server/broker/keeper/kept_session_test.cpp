#include "server/broker/keeper/kept_session.hpp"

#include <string>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <doctest/doctest.h>

#include "server/broker/keeper/kept_session.capnp.h"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

KeptSession a_session() {
  using std::chrono::system_clock;
  return {.build = kept_build(),
          .record = {.number = scheduler::SessionId(17),
                     .wire_id = {1, 2, 3, 255},
                     .tenant = "anna",
                     .user = "ben",
                     .devices = {0, 3},
                     .memory_bytes = 5u << 20,
                     .peer = "10.0.0.7:4711",
                     .security = "tls certificate",
                     .credential = "c1",
                     .program = "python3",
                     .host = "laptop",
                     .client_pid = 99,
                     .gpu_type = "h200",
                     .worker_pid = 1234,
                     .state = SessionState::detached,
                     .arrived = system_clock::time_point(std::chrono::seconds(1000)),
                     .begun = system_clock::time_point(std::chrono::seconds(1001)),
                     .detached_until = system_clock::time_point(std::chrono::seconds(2000))},
          .queue_round = 5,
          .device_uuids = {"GPU-a", "GPU-b"},
          .stop = {"enough", StopKind::kernel_time},
          .resume_grace_ms = 60'000,
          .ledger_slot = 7,
          .host_before_bytes = 123,
          .page_began_ns = 456,
          .lanes = 4,
          .returned_ns = 789,
          .return_took_ns = 12};
}

}  // namespace

TEST_CASE("the next broker reads the entry that a broker has written of a session") {
  const KeptSession before = a_session();
  auto after = decode_kept_session(encode(before));
  REQUIRE(after);
  CHECK(after->build == before.build);
  CHECK(after->record.number == before.record.number);
  CHECK(after->record.wire_id == before.record.wire_id);
  CHECK(after->record.tenant == before.record.tenant);
  CHECK(after->record.devices == before.record.devices);
  CHECK(after->record.memory_bytes == before.record.memory_bytes);
  CHECK(after->record.peer == before.record.peer);
  CHECK(after->record.security == before.record.security);
  CHECK(after->record.credential == before.record.credential);
  CHECK(after->record.program == before.record.program);
  CHECK(after->record.host == before.record.host);
  CHECK(after->record.client_pid == before.record.client_pid);
  CHECK(after->record.user == before.record.user);
  CHECK(after->record.gpu_type == before.record.gpu_type);
  CHECK(after->record.worker_pid == before.record.worker_pid);
  CHECK(after->record.state == SessionState::detached);
  CHECK(after->record.arrived == before.record.arrived);
  CHECK(after->record.begun == before.record.begun);
  CHECK(after->record.detached_until == before.record.detached_until);
  CHECK(after->device_uuids == before.device_uuids);
  CHECK(after->stop.why == before.stop.why);
  CHECK(after->stop.kind == before.stop.kind);
  CHECK(after->resume_grace_ms == before.resume_grace_ms);
  CHECK(after->ledger_slot == before.ledger_slot);
  CHECK(after->host_before_bytes == before.host_before_bytes);
  CHECK(after->page_began_ns == before.page_began_ns);
  CHECK(after->lanes == before.lanes);
  CHECK(after->returned_ns == before.returned_ns);
  CHECK(after->return_took_ns == before.return_took_ns);
  CHECK(after->queue_round == before.queue_round);
}

TEST_CASE("a session that its client has not begun yet comes back as one") {
  KeptSession session = a_session();
  session.record.state = SessionState::granted;
  session.record.begun = {};
  CHECK(decode_kept_session(encode(session))->record.state == SessionState::granted);
}

TEST_CASE("a note that is cut anywhere is no session") {
  const std::string text = encode(a_session());
  for (size_t bytes = 0; bytes + 8 <= text.size(); bytes += 8) CHECK_FALSE(decode_kept_session(text.substr(0, bytes)));
  CHECK_FALSE(decode_kept_session("no session at all, whatever else it may be"));
}

TEST_CASE("a note whose bits have changed is read as something or nothing, within its bounds") {
  const std::string text = encode(a_session());
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string changed = text;
    changed[bit / 8] = char(changed[bit / 8] ^ (1 << (bit % 8)));
    if (auto session = decode_kept_session(changed))
      CHECK(session->record.devices.size() == session->device_uuids.size());
  }
}

TEST_CASE("a note with more devices than any is written with is no session") {
  auto note = [](unsigned devices) {
    const KeptSession one = a_session();
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<kept::Session>();
    root.setNumber(uint64_t(one.record.number));
    root.setWireId({one.record.wire_id.data(), one.record.wire_id.size()});
    root.initDevices(devices);
    auto words = capnp::messageToFlatArray(message);
    return std::string(words.asChars().begin(), words.asChars().size());
  };
  auto most = decode_kept_session(note(64));
  REQUIRE(most);
  CHECK(most->record.devices.size() == 64);
  auto more = decode_kept_session(note(65));
  REQUIRE_FALSE(more);
  CHECK(more.error() == "a session with 65 devices");
}

TEST_CASE("a share is noted under its token, with its session, kind and user") {
  ShareToken token{};
  for (size_t i = 0; i < token.size(); ++i) token[i] = uint8_t(i * 17);
  CHECK(token_of(kept_name(token)) == token);
  CHECK_FALSE(token_of("share/00"));
  CHECK_FALSE(token_of("share/" + std::string(32, 'x')));
  CHECK_FALSE(token_of(kept_name(scheduler::SessionId(1))));
  auto share = decode_kept_share(encode(KeptShare{scheduler::SessionId(5), 2, "a user with spaces"}));
  REQUIRE(share);
  CHECK(share->session == scheduler::SessionId(5));
  CHECK(share->kind == 2);
  CHECK(share->user == "a user with spaces");
  CHECK(decode_kept_share(encode(KeptShare{scheduler::SessionId(5), 2, ""})));
  for (const char* wrong : {"", "5", "5 ", "5 2", "x 2 u", "5 x u"}) CHECK_FALSE(decode_kept_share(wrong));
}
