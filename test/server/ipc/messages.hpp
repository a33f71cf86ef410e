// One message of each kind, with every field set.
#pragma once

#include <vector>

#include <sys/eventfd.h>

#include "server/ipc/codec.hpp"

namespace gpuwire::server::ipc::test {

inline OwnedDescriptor a_descriptor() { return OwnedDescriptor(::eventfd(0, EFD_CLOEXEC)); }

struct Said {
  Speaker by;
  Message message;
};

inline std::vector<Said> one_of_each() {
  std::vector<Said> all;
  auto worker = [&](Message message) { all.push_back({Speaker::worker, std::move(message)}); };
  auto broker = [&](Message message) { all.push_back({Speaker::broker, std::move(message)}); };
  auto auth_server = [&](Message message) { all.push_back({Speaker::auth_server, std::move(message)}); };
  auto keeper = [&](Message message) { all.push_back({Speaker::keeper, std::move(message)}); };
  auto suspender = [&](Message message) { all.push_back({Speaker::suspender, std::move(message)}); };
  const ShareToken token{1, 2, 3, 255};
  worker(Ready{{"1 x device", {{.index = 0, .bytes = 1 << 30, .taken_bytes = 7, .name = "device", .uuid = "GPU-1"}}}});
  worker(Failed{"no device"});
  worker(Begun{"python3 (process 7 on laptop)"});
  worker(Ended{EndCause::resume_grace, "it did not come back"});
  worker(Note{"a line"});
  worker(Share{8, token, 2, "anna", a_descriptor()});
  worker(Claim{9, token, 3, "ben"});
  worker(Withdraw{token});
  worker(MemoryWanted{10, 64, uint64_t{1} << 40, true});
  worker(Detached{300'000, "lost"});
  worker(Attached{});
  worker(ResumeRefused{"a wrong proof"});
  SessionSpec spec{.number = 7,
                   .peer = "127.0.0.1:4711",
                   .tenant = "anna",
                   .identified = true,
                   .devices = {{3, 1 << 30}},
                   .tls_key = std::string(kTlsKeyBytes, 'k'),
                   .host_memory_bytes = 1 << 20,
                   .resume_grace_ms = 5,
                   .hang_up_grace_ms = 6,
                   .lanes_max = 4,
                   .chunks_charged = true,
                   .ledger_slot = 3,
                   .ledger_user = 4,
                   .user_limit_bytes = 5,
                   .evicts = true};
  broker(Serve{{9, 8, 7},
               spec,
               {a_descriptor(), a_descriptor(), a_descriptor(), a_descriptor(), a_descriptor(), a_descriptor(),
                a_descriptor()}});
  broker(Stop{"maintenance", StopKind::kernel_time});
  broker(Warn{"a kernel runs for long"});
  broker(Answer{10, true, a_descriptor()});
  broker(Attach{a_descriptor(), std::string(kTlsKeyBytes, 't')});
  broker(Adopted{});
  broker(Unattended{});
  broker(Identity{a_descriptor(), a_descriptor(), a_descriptor(), a_descriptor()});
  broker(Arrival{5, a_descriptor(), "10.0.0.7:4711", "10.0.0.7", true, "unix tenant", "open", true, true, "anna"});
  broker(Queued{5, 2, 3, "all GPUs are taken", std::string(kWireIdBytes, 'q')});
  broker(Admitted{5});
  broker(Refused{5, "no"});
  auth_server(IdentityRead{"server.pem: it expired"});
  auth_server(Login{5, "anna", "tls token", "t1", 2, 1 << 30, "python3", "laptop", 99, "10.0.0.7:4711", true,
                    std::string(kWireIdBytes, 'w'), std::string(kWireIdBytes, 'q'), "queue text 80", "H200", "ben"});
  auth_server(Gone{5, "the client left"});
  auth_server(Passed{5, a_descriptor(), std::string(kTlsKeyBytes, 'p')});
  auth_server(TurnedAway{"10.0.0.7:4711", "token", "unknown", "anna", "t1", 4});
  broker(Hello{kKeeperVersion, std::string(kKeeperKeyBytes, 'h')});
  broker(Grace{60'000});
  auto entry = [] {
    KeptEntry entry{.session = true,
                    .awaited = true,
                    .name = "session/7",
                    .text = std::string("bytes\0more", 10),
                    .descriptors = {}};
    entry.descriptors.push_back(a_descriptor());
    entry.descriptors.emplace_back();
    entry.descriptors.push_back(a_descriptor());
    return entry;
  };
  broker(Put{entry()});
  broker(Rewrite{"session/7", "more"});
  broker(Remove{"session/7"});
  broker(Give{});
  keeper(Entry{entry()});
  keeper(Given{1});
  broker(Told{5, "PLACE  SESSION\n", true});
  broker(Move{15, 4711, true, a_descriptor()});
  suspender(SuspenderReady{"no driver"});
  suspender(Moved{16, MoveResult::no_room, "too little memory"});
  worker(Quiet{"a call is under way"});
  worker(ReturnWanted{});
  broker(Quiesce{});
  broker(GoOn{});
  broker(MoveBlocks{true});
  worker(BlocksMoved{true, MoveResult::no_room, "too little memory"});
  return all;
}

}  // namespace gpuwire::server::ipc::test
