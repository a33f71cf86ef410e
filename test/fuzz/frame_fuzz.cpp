// All code that reads a peer's bytes reads the input. It may not crash, hang or allocate without a limit, and its
// result may not depend on the pieces in which the bytes arrive.
#include "test/fuzz/frame_fuzz.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include <capnp/dynamic.h>
#include <capnp/schema.h>

#include "protocol/wire/frame_decoder.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/ordinals.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"
#include "wire/session_frames.hpp"
#include "wire/session_structures.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::wire;
using capnp::DynamicList;
using capnp::DynamicStruct;
using capnp::DynamicValue;

// Reads every field, as deep as there is.
uint64_t walk(DynamicValue::Reader value);

uint64_t walk(DynamicStruct::Reader structure) {
  uint64_t sum = 0;
  for (auto field : structure.getSchema().getFields()) sum += walk(structure.get(field));
  return sum;
}

uint64_t walk(DynamicValue::Reader value) {
  switch (value.getType()) {
    case DynamicValue::STRUCT: return walk(value.as<DynamicStruct>());
    case DynamicValue::LIST: {
      uint64_t sum = 0;
      for (auto element : value.as<DynamicList>()) sum += walk(element);
      return sum;
    }
    case DynamicValue::TEXT: {
      auto text = value.as<capnp::Text>();
      return uint64_t(std::count(text.begin(), text.end(), 'x'));
    }
    case DynamicValue::DATA: {
      auto data = value.as<capnp::Data>();
      return uint64_t(std::count(data.begin(), data.end(), 0));
    }
    default: return 1;
  }
}

template <class Structure>
void read_as(kj::ArrayPtr<const capnp::word> words) {
  [[maybe_unused]] volatile uint64_t sum = 0;
  read_guarded([&] {
    SegmentReader message(words);
    sum = walk(DynamicValue::Reader(DynamicStruct::Reader(message.getRoot<Structure>())));
  });
}

void read_call(uint32_t ordinal, kj::ArrayPtr<const capnp::word> words) {
  bool known = visit_session_call(ordinal, [&](auto call) { read_as<typename decltype(call)::Message>(words); });
  if (!known) read_as<schema::Ping>(words);
}

void read_notice(uint32_t ordinal, kj::ArrayPtr<const capnp::word> words) {
  visit_notice(ordinal, [&](auto notice) { read_as<typename decltype(notice)::Message>(words); });
}

// A reply's header does not contain its call; here the ordinal selects the call.
void read_reply(uint32_t ordinal, kj::ArrayPtr<const capnp::word> words) {
  bool known = visit_session_call(ordinal, [&](auto call) { read_as<typename decltype(call)::Reply>(words); });
  if (!known) read_as<schema::Result>(words);
}

void read_frame(const FrameHeader& header, kj::ArrayPtr<const capnp::word> words) {
  switch (FrameKind(header.kind)) {
    case FrameKind::control:
      return header.ordinal == uint32_t(ControlOrdinal::hello) ? read_as<schema::Hello>(words)
                                                               : read_as<schema::Welcome>(words);
    case FrameKind::posted:
    case FrameKind::called: return read_call(header.ordinal, words);
    case FrameKind::reply: return read_reply(header.ordinal, words);
    case FrameKind::notice: return read_notice(header.ordinal, words);
    case FrameKind::acknowledge: return;
  }
}

struct Summary {
  uint64_t frames = 0, bulk_bytes = 0;
  std::string fault;
  bool operator==(const Summary&) const = default;
};

// `piece`: bytes that arrive at a time.
Summary decode(Sender sender, std::span<const std::byte> bytes, size_t piece, bool read) {
  FrameDecoder decoder(sender);
  Summary summary;
  for (;;) {
    switch (decoder.next()) {
      case FrameDecoder::Next::fault: summary.fault = decoder.fault(); return summary;
      case FrameDecoder::Next::frame:
        ++summary.frames;
        ++g_frames_decoded;
        // Checks the length of bulk as both ends do before they read it; the limit of a reply is its call's request.
        if (auto kind = FrameKind(decoder.header().kind);
            kind != FrameKind::reply && decoder.header().bulk_bytes > bulk_bytes_max(kind, decoder.header().ordinal)) {
          summary.fault = "more bulk than the frame may carry";
          return summary;
        }
        if (read) read_frame(decoder.header(), decoder.message());
        while (decoder.bulk_left()) {
          size_t count = decoder.buffered_bulk().size();
          if (count) {
            decoder.take_bulk(count);
          } else {
            count = size_t(std::min<uint64_t>({decoder.bulk_left(), piece, bytes.size()}));
            if (!count) return summary;
            decoder.bulk_read_elsewhere(count);
            bytes = bytes.subspan(count);
          }
          summary.bulk_bytes += count;
        }
        break;
      case FrameDecoder::Next::need_more: {
        auto space = decoder.space();
        size_t count = std::min({space.size(), piece, bytes.size()});
        if (!count) return summary;
        std::memcpy(space.data(), bytes.data(), count);
        decoder.filled(count);
        bytes = bytes.subspan(count);
      }
    }
  }
}

void check_prefaces(std::span<const std::byte> bytes) {
  std::string text;
  Preface preface;
  check_server(bytes.first(std::min(bytes.size(), sizeof(Preface))), preface, text);
  PrefaceBytes whole{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), whole.size()), whole.begin());
  check_client(whole, text);
}

}  // namespace

// The first byte selects the pieces in which the rest arrives.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (!size) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  check_prefaces(bytes);
  for (Sender sender : {Sender::client, Sender::server}) {
    Summary whole = decode(sender, bytes, bytes.size(), true);
    Summary pieces = decode(sender, bytes, 1 + data[0], false);
    if (!(whole == pieces)) std::abort();
  }
  return 0;
}
