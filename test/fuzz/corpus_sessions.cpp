#include "test/fuzz/corpus_sessions.hpp"

#include <algorithm>
#include <array>

#include <capnp/message.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/handle.hpp"
#include "protocol/wire/ordinals.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"
#include "server/management/replay_support.hpp"
#include "server/replay/replay.hpp"
#include "wire/session_frames.hpp"
#include "wire/session_structures.hpp"

namespace gpuwire::test {
namespace {

using namespace wire;

std::string frame(FrameHeader header, std::string_view words, size_t bulk_bytes = 0) {
  header.message_words = uint32_t(words.size() / sizeof(capnp::word));
  header.bulk_bytes = bulk_bytes;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  return bytes.append(words).append(bulk_bytes, 'b');
}

template <class Structure, class Fill>
std::string message(Fill&& fill) {
  capnp::MallocMessageBuilder builder;
  fill(builder.initRoot<Structure>());
  auto words = builder.getSegmentsForOutput()[0].asBytes();
  return {reinterpret_cast<const char*>(words.begin()), words.size()};
}

template <class Structure, class Fill>
std::string called(SessionOrdinal ordinal, Fill&& fill, size_t bulk_bytes = 0) {
  return frame({.kind = uint8_t(FrameKind::called), .ordinal = uint32_t(ordinal)}, message<Structure>(fill),
               bulk_bytes);
}

// A structure of this many words of data, each with the value, and without pointers, for a call whose structure is
// unknown here.
std::string plain_structure(unsigned words, uint64_t value) {
  std::string bytes;
  auto append = [&](uint64_t word) { bytes.append(reinterpret_cast<const char*>(&word), sizeof word); };
  append(uint64_t(words) << 32);
  for (unsigned i = 0; i < words; ++i) append(value);
  return bytes;
}

kj::ArrayPtr<const kj::byte> digest() {
  static const std::array<kj::byte, 32> bytes{1, 2, 3};
  return {bytes.data(), bytes.size()};
}

// The target's first byte: waits complete at once, and frames without a context use the primary context.
constexpr char kAtOnceInPrimary = 1 | 4;
constexpr size_t kCallsOfInput = 128;

}  // namespace

void add_replays(const WriteInput& write) {
  auto calls = server::generated_replay_table();
  for (uint64_t value : {uint64_t{0}, make_handle(HandleKind::stream, 1, 1)}) {
    std::string stream;
    size_t in_stream = 0, number = 0;
    auto flush = [&] {
      write("driver_calls_" + std::to_string(number++) + (value ? "_handles" : ""), kAtOnceInPrimary + stream);
      stream.clear();
      in_stream = 0;
    };
    for (uint32_t i = 0; i < calls.size(); ++i) {
      if (!calls[i].function) continue;
      stream +=
          frame({.kind = uint8_t(FrameKind::called), .ordinal = kFirstDriverOrdinal + i}, plain_structure(12, value));
      if (++in_stream == kCallsOfInput) flush();
    }
    if (in_stream) flush();
  }
  std::string own;
  for (uint32_t ordinal = 0; ordinal < kFirstDriverOrdinal; ++ordinal) {
    visit_session_call(ordinal, [&](auto call) {
      using Call = decltype(call);
      own +=
          frame({.kind = uint8_t(FrameKind::called), .ordinal = ordinal}, message<typename Call::Message>([](auto) {}),
                size_t(std::min<uint64_t>(bulk_bytes_max(FrameKind::called, ordinal), 8)));
    });
  }
  write("own_calls", kAtOnceInPrimary + own);
  const uint64_t module = make_handle(HandleKind::module, 1, 1), function = make_handle(HandleKind::function, 1, 1);
  write("module", kAtOnceInPrimary +
                      called<schema::ModuleData>(
                          SessionOrdinal::module_data, [](auto data) { data.setDigest(digest()); }, 64) +
                      called<schema::ModuleLoad>(SessionOrdinal::module_load,
                                                 [&](auto load) {
                                                   load.setDigest(digest());
                                                   load.setHandle(module);
                                                 }) +
                      called<schema::ModuleFunction>(SessionOrdinal::module_function,
                                                     [&](auto asked) {
                                                       asked.setModule(module);
                                                       asked.setHandle(function);
                                                       asked.setName("_Z3addPf");
                                                     }) +
                      called<schema::Launch>(SessionOrdinal::launch, [&](auto launch) {
                        launch.setFunction(function);
                        launch.setParameters(digest().slice(0, 12));
                      }));
  std::string copies = called<schema::CopyToDevice>(
                           SessionOrdinal::copy_to_device, [](auto copy) { copy.setDestination(1 << 20); }, 37) +
                       called<schema::CopyFromDevice>(SessionOrdinal::copy_from_device, [](auto copy) {
                         copy.setSource(1 << 20);
                         copy.setBytes(64);
                       });
  for (char first : {char(1 | 4), char(4), char(2 | 4)}) write("copies_" + std::to_string(int(first)), first + copies);
}

void add_sessions(const WriteInput& write) {
  std::string welcome = frame({.kind = uint8_t(FrameKind::control), .ordinal = uint32_t(ControlOrdinal::welcome)},
                              message<schema::Welcome>([](auto root) {
                                root.setDriverName("driver");
                                root.setOrdinals(digest());
                                auto device = root.initDevices(1)[0];
                                device.setName("device");
                                device.setUuid(digest().slice(0, 16));
                                device.initAttributes(4).set(1, 1024);
                                device.initLimits(2);
                                device.initPeers(2).set(1, true);
                              }));
  auto reply = [](uint64_t sequence, size_t bulk_bytes) {
    return frame({.kind = uint8_t(FrameKind::reply), .sequence = sequence}, message<schema::Result>([](auto) {}),
                 bulk_bytes);
  };
  auto notice = [](NoticeOrdinal ordinal, const std::string& words, size_t bulk_bytes = 0) {
    return frame({.kind = uint8_t(FrameKind::notice), .ordinal = uint32_t(ordinal), .sequence = 1}, words, bulk_bytes);
  };
  std::string copied =
      notice(NoticeOrdinal::copy_data, message<schema::CopyData>([](auto copy) { copy.setLast(true); }), 33);
  std::string ending = notice(NoticeOrdinal::ending,
                              message<schema::Ending>([](auto root) { root.setReason("\x1b[31mmaintenance\n"); }));
  const char kWhole = char(0xff);
  auto say = [&](const std::string& name, const std::string& words) { write(name, kWhole + words); };
  say("welcome", welcome);
  say("refused", ending);
  say("replies", welcome + reply(1, 0) + reply(2, 64) + reply(3, 0) + reply(4, 10));
  say("too_much", welcome + reply(1, 1));
  say("out_of_order", welcome + reply(2, 0));
  say("notices", welcome + copied + reply(1, 0) + copied + reply(2, 5));
  say("ending", welcome + reply(1, 0) + ending);
  say("control",
      welcome + frame({.kind = uint8_t(FrameKind::control), .ordinal = uint32_t(ControlOrdinal::heartbeat)}, ""));
  say("acknowledged", welcome + frame({.kind = uint8_t(FrameKind::acknowledge), .sequence = 1 << 20}, ""));
  std::string every;
  for (uint32_t ordinal = 0; ordinal < kFirstDriverOrdinal; ++ordinal) {
    visit_notice(ordinal, [&](auto of) {
      every += notice(NoticeOrdinal(ordinal), message<typename decltype(of)::Message>([](auto) {}),
                      size_t(std::min<uint64_t>(bulk_bytes_max(FrameKind::notice, ordinal), 8)));
    });
  }
  say("every_notice", welcome + every);
}

void add_management_queries(const WriteInput& write) {
  // Each shape of arguments for some of the functions.
  constexpr size_t kStep = 24;
  const size_t functions = nvml::query_functions().size();
  for (uint16_t function = 0; function < functions; function = uint16_t(function + kStep)) {
    std::string number(reinterpret_cast<const char*>(&function), sizeof function);
    write(std::to_string(function) + "_device", number + std::string(4, '\0'));
    write(std::to_string(function) + "_numbers", number + std::string(12, '\0'));
  }
}

}  // namespace gpuwire::test
