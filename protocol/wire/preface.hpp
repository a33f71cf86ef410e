// The first 64 bytes of each side: their layout on the wire, and the texts for two sides that do not fit together.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

using PrefaceBytes = std::array<std::byte, sizeof(Preface)>;

// This program's own preface, protocol version and release filled in.
Preface own_preface();
// A server's preface that refuses; `text` (cut at kRefusalBytesMax) has to follow it on the wire.
Preface refusing_preface(RefusalCode code, std::string& text);

PrefaceBytes encode(const Preface& preface);
Preface decode(const PrefaceBytes& bytes);

// "1.0 (release 0.1.0)"; characters that do not print are replaced.
std::string version_text(const Preface& preface);

// Is a client's preface acceptable? `accepted`, or a code and, in `text`, a reason that names both sides' versions.
RefusalCode check_client(const PrefaceBytes& bytes, std::string& text);

// The meaning of the first bytes from a server, even if they are fewer than a preface.
enum class ServerAnswer : uint8_t {
  accepted,
  incomplete,   // so far it looks right
  refused,      // refusal_bytes of reason follow
  version,      // `text` names both versions
  not_gpuwire,  // `text` names the service that seems to be there instead
};
ServerAnswer check_server(std::span<const std::byte> received, Preface& preface, std::string& text);

// A phrase for bytes that are not ours: "an HTTP server answers there", "an SSH server answers there", or their
// beginning, printable.
std::string describe_stranger(std::span<const std::byte> received);

}  // namespace gpuwire::wire
