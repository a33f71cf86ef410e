// Writes the corpus: a small input for each preface, frame and message. The first byte of an input is the fuzz
// function's own.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <type_traits>

#include <capnp/message.h>

#include "protocol/wire/ordinals.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/handshake.capnp.h"
#include "schema/login.capnp.h"
#include "schema/session.capnp.h"
#include "test/fuzz/corpus_connections.hpp"
#include "test/fuzz/corpus_images.hpp"
#include "test/fuzz/corpus_kept.hpp"
#include "test/fuzz/corpus_sessions.hpp"
#include "wire/session_frames.hpp"
#include "wire/session_structures.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::wire;

std::filesystem::path g_folder;

void write_whole(const std::string& name, const std::string& bytes) {
  std::ofstream(g_folder / name, std::ios::binary) << bytes;
}
void write(const std::string& name, const std::string& bytes) { write_whole(name, '\x10' + bytes); }

std::string frame(FrameKind kind, uint32_t ordinal, capnp::MessageBuilder& message, size_t bulk = 0) {
  auto words = message.getSegmentsForOutput()[0];
  FrameHeader header{.kind = uint8_t(kind),
                     .ordinal = ordinal,
                     .sequence = 1,
                     .message_words = uint32_t(words.size()),
                     .bulk_bytes = bulk};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes.append(reinterpret_cast<const char*>(words.begin()), words.asBytes().size());
  return bytes + std::string(bulk, 'b');
}

// Streams of frames of each side; most frames stay valid after a change at one place.
std::string g_client_stream, g_server_stream;
constexpr int kTimesInStream = 4;

template <class Structure, class Fill>
void add(const std::string& name, FrameKind kind, uint32_t ordinal, Fill&& fill, size_t bulk = 0) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<Structure>());
  std::string bytes = frame(kind, ordinal, message, bulk);
  write(name, bytes);
  if (kind == FrameKind::posted || kind == FrameKind::called) g_client_stream += bytes;
  if (kind == FrameKind::reply || kind == FrameKind::notice) g_server_stream += bytes;
}

void add_streams() {
  auto repeated = [](const std::string& stream) {
    std::string bytes;
    for (int i = 0; i < kTimesInStream; ++i) bytes += stream;
    return bytes;
  };
  write("client_stream", repeated(g_client_stream));
  write("server_stream", repeated(g_server_stream));
}

kj::ArrayPtr<const kj::byte> some_data() {
  return kj::arrayPtr(reinterpret_cast<const kj::byte*>("sixteen bytes..."), 16);
}

void add_handshake() {
  write("preface", std::string(reinterpret_cast<const char*>(encode(own_preface()).data()), sizeof(Preface)));
  write("http", "HTTP/1.1 400 Bad Request\r\n\r\n");
  add<schema::Hello>("hello", FrameKind::control, uint32_t(ControlOrdinal::hello), [](auto hello) {
    hello.setProgram("vector_add");
    hello.setHost("client");
  });
  add<schema::Welcome>("welcome", FrameKind::control, uint32_t(ControlOrdinal::welcome), [](auto welcome) {
    welcome.setDriverName("driver");
    welcome.setOrdinals(some_data());
    auto device = welcome.initDevices(1)[0];
    device.setName("device");
    device.setUuid(some_data());
    device.initAttributes(4).set(1, 1024);
    device.initLimits(2);
    device.initPeers(2).set(1, true);
  });
}

void add_calls() {
  auto call = [](SessionOrdinal ordinal) { return uint32_t(ordinal); };
  add<schema::Launch>("launch", FrameKind::posted, call(SessionOrdinal::launch),
                      [](auto launch) { launch.setParameters(some_data()); });
  add<schema::CopyToDevice>(
      "copy_to_device", FrameKind::posted, call(SessionOrdinal::copy_to_device),
      [](auto copy) { copy.setDestination(1 << 20); }, 37);
  add<schema::CopyFromDevice>("copy_from_device", FrameKind::called, call(SessionOrdinal::copy_from_device),
                              [](auto copy) { copy.setBytes(64); });
  add<schema::Copy2D>(
      "copy_2d", FrameKind::called, call(SessionOrdinal::copy_2d_to_device), [](auto copy) { copy.setHeight(4); }, 16);
  add<schema::CopyChunks>("copy_chunks", FrameKind::called, call(SessionOrdinal::copy_chunks), [](auto copy) {
    copy.setBytes(1000);
    std::memset(copy.initDigests(32).begin(), 7, 32);
  });
  add<schema::FindChunk>("find_chunk", FrameKind::posted, call(SessionOrdinal::find_chunk),
                         [](auto find) { find.setDigest(some_data()); });
  add<schema::CopyRegionToDevice>("copy_region_to_device", FrameKind::posted,
                                  call(SessionOrdinal::copy_region_to_device), [](auto copy) {
                                    copy.setRegion(1 << 20);
                                    copy.setBytes(4096);
                                  });
  add<schema::CopyRegionFromDevice>("copy_region_from_device", FrameKind::called,
                                    call(SessionOrdinal::copy_region_from_device), [](auto copy) {
                                      copy.setRegion(1 << 20);
                                      copy.setBytes(4096);
                                    });
  add<schema::FreeAtRest>("free_at_rest", FrameKind::posted, call(SessionOrdinal::free_at_rest),
                          [](auto free) { free.initAddresses(2).set(1, 1 << 20); });
  add<schema::AllocateAhead>("allocate_ahead", FrameKind::posted, call(SessionOrdinal::allocate_ahead), [](auto ahead) {
    ahead.setBytes(4096);
    ahead.setCount(2);
  });
  add<schema::AllocateKnown>("allocate_known", FrameKind::posted, call(SessionOrdinal::allocate_known),
                             [](auto known) { known.initSizes(2).set(1, 4096); });
  add<schema::ModuleOffer>("module_offer", FrameKind::called, call(SessionOrdinal::module_offer),
                           [](auto offer) { offer.setDigest(some_data()); });
  add<schema::ModuleData>(
      "module_data", FrameKind::posted, call(SessionOrdinal::module_data),
      [](auto data) { data.setDigest(some_data()); }, 100);
  add<schema::ModuleLoad>("module_load", FrameKind::called, call(SessionOrdinal::module_load), [](auto load) {
    load.setDigest(some_data());
    load.initJitOptions(2)[1].setValue(7);
  });
  add<schema::ModuleFunction>("module_function", FrameKind::called, call(SessionOrdinal::module_function),
                              [](auto function) { function.setName("_Z3addPf"); });
  add<schema::FunctionTry>("function_try", FrameKind::called, call(SessionOrdinal::function_try), [](auto params) {
    params.initAttributes(1).set(0, 14);  // clusters of any size
    params.initValues(1).set(0, 1);
  });
  add<schema::HostFunction>("host_function", FrameKind::posted, call(SessionOrdinal::host_function),
                            [](auto function) { function.setCallback(3); });
}

void add_answers() {
  auto of = [](SessionOrdinal call) { return uint32_t(call); };
  add<schema::Result>("reply_result", FrameKind::reply, of(SessionOrdinal::ping),
                      [](auto result) { result.setResult(700); });
  add<schema::SessionAccountReply>("reply_session_account", FrameKind::reply, of(SessionOrdinal::session_account),
                                   [](auto reply) { reply.setAgeNs(1'000'000'000); });
  add<schema::ModuleLoadReply>("reply_module_load", FrameKind::reply, of(SessionOrdinal::module_load),
                               [](auto reply) { reply.setErrorLog("ptxas error: line 3"); });
  add<schema::ChunksReply>("reply_chunks", FrameKind::reply, of(SessionOrdinal::copy_chunks),
                           [](auto reply) { reply.setMissing(some_data()); });
  add<schema::FunctionFacts>("reply_facts", FrameKind::reply, of(SessionOrdinal::module_function), [](auto facts) {
    facts.initParameterOffsets(3).set(2, 16);
    facts.initAttributes(5);
  });
  add<schema::ModuleFunctions>("reply_functions", FrameKind::reply, of(SessionOrdinal::module_functions),
                               [](auto functions) {
                                 auto names = functions.initNames(2);
                                 names.set(0, "first");
                                 names.set(1, "second");
                               });
  auto notice = [](NoticeOrdinal ordinal) { return uint32_t(ordinal); };
  add<schema::Completion>("completion", FrameKind::notice, notice(NoticeOrdinal::completion),
                          [](auto done) { done.setSequence(9); });
  add<schema::DeferredError>("deferred_error", FrameKind::notice, notice(NoticeOrdinal::deferred_error),
                             [](auto error) { error.setMessage("why"); });
  add<schema::CopyData>(
      "copy_data", FrameKind::notice, notice(NoticeOrdinal::copy_data), [](auto copy) { copy.setLast(true); }, 33);
  add<schema::ChunkFound>("chunk_found", FrameKind::notice, notice(NoticeOrdinal::chunk_found),
                          [](auto found) { found.setSequence(9); });
  add<schema::FreedAtRest>("freed_at_rest", FrameKind::notice, notice(NoticeOrdinal::freed_at_rest),
                           [](auto freed) { freed.setSequence(9); });
  add<schema::AllocatedAhead>("allocated_ahead", FrameKind::notice, notice(NoticeOrdinal::allocated_ahead),
                              [](auto allocated) { allocated.initAddresses(2).set(1, 1 << 20); });
  add<schema::Ending>("ending", FrameKind::notice, notice(NoticeOrdinal::ending),
                      [](auto ending) { ending.setReason("maintenance"); });
  FrameHeader acknowledgement{.kind = uint8_t(FrameKind::acknowledge), .sequence = 7};
  write("acknowledge", std::string(reinterpret_cast<const char*>(&acknowledgement), sizeof acknowledgement));
}

// One stream with every call and its reply, and one with every notice, each with as much bulk as fits into a small
// input.
void add_every_frame() {
  constexpr uint64_t kBulkMax = 5;
  std::string calls, replies, notices;
  auto append = [](std::string& stream, auto structure, FrameKind kind, uint32_t ordinal, uint64_t bulk) {
    capnp::MallocMessageBuilder message;
    message.initRoot<typename decltype(structure)::type>();
    stream += frame(kind, ordinal, message, size_t(bulk < kBulkMax ? bulk : kBulkMax));
  };
  for (uint32_t ordinal = 0; ordinal < kFirstDriverOrdinal; ++ordinal) {
    visit_session_call(ordinal, [&](auto call) {
      using Call = decltype(call);
      append(calls, std::type_identity<typename Call::Message>(), FrameKind::called, ordinal,
             bulk_bytes_max(FrameKind::called, ordinal));
      append(replies, std::type_identity<typename Call::Reply>(), FrameKind::reply, ordinal,
             bulk_bytes_max(FrameKind::reply, ordinal));
    });
    visit_notice(ordinal, [&](auto notice) {
      append(notices, std::type_identity<typename decltype(notice)::Message>(), FrameKind::notice, ordinal,
             bulk_bytes_max(FrameKind::notice, ordinal));
    });
  }
  write("every_call", calls);
  write("every_reply", replies);
  write("every_notice", notices);
}

// A server's data for a client that logs in: its preface, then answers.
void add_logins() {
  auto answer = [](auto&& fill) {
    capnp::MallocMessageBuilder message;
    fill(message.initRoot<schema::LoginAnswer>());
    return frame(FrameKind::control, uint32_t(ControlOrdinal::login_answer), message);
  };
  Preface own = own_preface();
  own.flags = kPrefaceLogin;
  std::string preface(reinterpret_cast<const char*>(encode(own).data()), sizeof(Preface)),
      reason = "all places are taken";
  std::string queued = answer([](auto root) {
    auto place = root.initQueued();
    place.setPlace(3);
    place.setWaiting(5);
    place.setWhy("all GPUs are in use");
  });
  std::string admitted = answer([](auto root) { root.setAdmitted(); });
  write("admitted", preface + admitted);
  write("queued", preface + queued + queued + admitted);
  write("refused", preface + answer([](auto root) { root.setRefused("revoked"); }));
  Preface refusing = refusing_preface(RefusalCode::busy, reason);
  write("refusing_preface",
        std::string(reinterpret_cast<const char*>(encode(refusing).data()), sizeof(Preface)) + reason);
}

void add_login_frames() {
  add<schema::Login>("login", FrameKind::control, uint32_t(ControlOrdinal::login), [](auto login) {
    login.setToken("gpuwire_Q2mA8UJQLFr9Y88JOsLUYmP71HDP04daIvjrWL2zVxk");
    login.setGpus(2);
    login.setProgram("vector_add");
    login.setHost("client");
  });
  add<schema::Login>("empty", FrameKind::control, uint32_t(ControlOrdinal::login), [](auto) {});
  add<schema::Hello>("hello", FrameKind::control, uint32_t(ControlOrdinal::hello), [](auto) {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  auto enter = [&](const char* corpus) {
    g_folder = std::filesystem::path(argv[1]) / corpus;
    std::filesystem::create_directories(g_folder);
  };
  enter("corpus");
  add_handshake();
  add_calls();
  add_answers();
  add_every_frame();
  add_streams();
  enter("login_corpus");
  add_logins();
  enter("login_frame_corpus");
  add_login_frames();
  enter("image_corpus");
  test::add_images(write);
  enter("broker_corpus");
  test::add_broker_messages(write);
  enter("resume_corpus");
  test::add_resumptions(write);
  enter("rdma_corpus");
  test::add_rdma(write_whole);
  enter("shared_memory_corpus");
  test::add_shared_memory(write_whole);
  enter("kept_corpus");
  test::add_kept_entries(write);
  enter("register_corpus");
  test::add_registers(write);
  enter("replay_corpus");
  test::add_replays(write_whole);
  enter("session_corpus");
  test::add_sessions(write_whole);
  enter("management_corpus");
  test::add_management_queries(write);
  return 0;
}
