#include "test/fuzz/corpus_kept.hpp"

#include <chrono>

#include "server/broker/keeper/kept_session.hpp"
#include "server/control/kept_totals.hpp"
#include "server/identity/register.hpp"

namespace gpuwire::test {

using namespace server;
using std::chrono::seconds;
using std::chrono::system_clock;

void add_kept_entries(const WriteInput& write) {
  KeptSession session{.build = "build",
                      .record = {.number = scheduler::SessionId(17),
                                 .wire_id = {1, 2, 3, 255},
                                 .tenant = "anna",
                                 .devices = {0, 3},
                                 .memory_bytes = 5u << 20,
                                 .peer = "10.0.0.7:4711",
                                 .security = "tls certificate",
                                 .program = "python3",
                                 .host = "laptop",
                                 .client_pid = 99,
                                 .worker_pid = 1234,
                                 .state = SessionState::running,
                                 .arrived = system_clock::time_point(seconds(1000)),
                                 .begun = system_clock::time_point(seconds(1001))},
                      .gpus = 2,
                      .device_uuids = {"GPU-a", "GPU-b"},
                      .resume_grace_ms = 60'000,
                      .ledger_slot = 7,
                      .lanes = 4};
  write("running", encode(session));
  session.record.state = SessionState::detached;
  session.record.detached_until = system_clock::time_point(seconds(2000));
  session.stop = {"enough", server::StopKind::kernel_time};
  write("detached", encode(session));
  session.record.state = SessionState::queued;
  session.record.worker_pid = 0;
  write("queued", encode(session));
  write("share", encode(KeptShare{.session = scheduler::SessionId(17), .kind = 2, .user = "python3"}));
  write("inventory", encode_kept_inventory({"1 x device", {{.bytes = 1 << 30, .name = "device", .uuid = "GPU-1"}}}));
  write("name_of_a_share", kept_name(ShareToken{1, 2, 3, 255}));
  write("name_of_a_place", kept_place_name(scheduler::SessionId(17)));
  write("name_of_a_total", kept_total_name("tenant/anna"));
  Snapshot snapshot;
  snapshot.tenants.push_back({.name = "anna", .bytes_in = 5, .ended = {{"finished", 3}}});
  snapshot.devices.push_back({.gpu_time_ns = 7});
  snapshot.refused["no_identity"] = 1;
  for (const auto& [name, text] : totals_of(snapshot)) write("total_" + name.substr(name.rfind('/') + 1), text);
}

void add_registers(const WriteInput& write) {
  const WallTime issued{seconds(1'763'000'000)}, expires = issued + std::chrono::hours(24);
  Register all;
  all.add({.kind = CredentialKind::certificate,
           .id = "0123456789abcdef",
           .tenant = "anna",
           .issued = issued,
           .expires = expires});
  all.add({.kind = CredentialKind::token,
           .id = "t1",
           .tenant = "ben",
           .issued = issued,
           .expires = expires,
           .hash = {1, 2, 3}});
  all.add({.kind = CredentialKind::token,
           .id = "t2",
           .tenant = "ben",
           .issued = issued,
           .expires = expires,
           .hash = {4, 5, 6},
           .job = "cluster/17",
           .gpus = 2});
  write("empty", Register().text());
  write("all", all.text());
  all.revoke("ben", true, issued);
  write("revoked", all.text());
  write("time", to_text(issued));
  write("time_before_the_clock", "0025-11-13T02:13:20Z");
}

}  // namespace gpuwire::test
