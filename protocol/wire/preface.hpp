// The first 64 bytes of each side: their layout on the wire, and the texts for two sides that are not compatible.
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

// Returns this program's preface, with protocol version and release.
Preface own_preface();
// Returns a server's preface that refuses, and cuts `text` at kRefusalBytesMax. The caller sends `text` behind the
// preface.
Preface refusing_preface(RefusalCode code, std::string& text);

PrefaceBytes encode(const Preface& preface);
Preface decode(const PrefaceBytes& bytes);

// "1.0 (release 0.1.0)"; unprintable characters are replaced.
std::string version_text(const Preface& preface);

// Checks a client's preface. Returns `accepted`, or a code and, in `text`, a reason that names both sides' versions.
RefusalCode check_client(const PrefaceBytes& bytes, std::string& text);

// The meaning of the first bytes from a server, even if they are fewer than a preface.
enum class ServerAnswer : uint8_t {
  accepted,
  incomplete,   // the bytes received so far are valid
  refused,      // the reason follows in refusal_bytes bytes
  version,      // `text` names both versions
  not_gpuwire,  // `text` names the service that seems to answer instead
};
ServerAnswer check_server(std::span<const std::byte> received, Preface& preface, std::string& text);

// Returns a phrase for bytes of another protocol: "an HTTP server answers there", "an SSH server answers there", or
// their beginning in printable form.
std::string describe_stranger(std::span<const std::byte> received);

}  // namespace gpuwire::wire
