#include "protocol/transport/control_message.hpp"

#include <span>
#include <vector>

#include <fmt/format.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/message_reader.hpp"

namespace gpuwire::transport {

bool send_control(Transport& connection, wire::ControlOrdinal ordinal, capnp::MessageBuilder& message,
                  Nanoseconds timeout) {
  auto words = message.getSegmentsForOutput();
  if (words.size() != 1) return false;
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(ordinal),
                           .message_words = uint32_t(words[0].size())};
  auto bytes = words[0].asBytes();
  iovec pieces[2] = {{&header, sizeof header}, {const_cast<kj::byte*>(bytes.begin()), bytes.size()}};
  return send_all(connection, pieces, timeout).status == IoStatus::ok;
}

tl::expected<void, std::string> receive_control(Transport& connection, wire::ControlOrdinal ordinal, uint32_t words_max,
                                                Nanoseconds timeout,
                                                const std::function<void(capnp::MessageReader&)>& read) {
  wire::FrameHeader header;
  if (auto got = receive_all(connection, std::as_writable_bytes(std::span(&header, 1)), timeout);
      got.status != IoStatus::ok)
    return tl::unexpected(describe(got));
  bool right = header.magic == wire::FrameHeader::kMagic && header.kind == uint8_t(wire::FrameKind::control) &&
               header.ordinal == uint32_t(ordinal);
  if (!right || header.message_words > words_max || header.bulk_bytes != 0)
    return tl::unexpected(fmt::format("a frame of kind {}, ordinal {} and {} words where one of ordinal {} should be",
                                      header.kind, header.ordinal, header.message_words, uint32_t(ordinal)));
  std::vector<capnp::word> words(header.message_words);
  if (auto got = receive_all(connection, std::as_writable_bytes(std::span(words)), timeout); got.status != IoStatus::ok)
    return tl::unexpected(describe(got));
  auto bad = wire::read_guarded([&] {
    wire::SegmentReader message(kj::arrayPtr(words.data(), words.size()));
    read(message);
  });
  if (bad) return tl::unexpected(*bad);
  return {};
}

}  // namespace gpuwire::transport
