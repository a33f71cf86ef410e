#include "protocol/wire/preface.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace gpuwire::wire {

namespace {

constexpr size_t kStrangerBytesShown = 32;

std::string printable(std::string_view text) {
  std::string out;
  for (char c : text) out += c >= 0x20 && c < 0x7f ? c : '.';
  return out;
}

bool magic_matches(std::span<const std::byte> received) {
  Preface own;
  return std::memcmp(received.data(), own.magic, std::min(received.size(), sizeof own.magic)) == 0;
}

std::string mismatch_text(const Preface& client, const Preface& server) {
  return fmt::format("client speaks gpuwire protocol {}, server speaks {}", version_text(client), version_text(server));
}

}  // namespace

Preface own_preface() {
  Preface preface;
  preface.protocol_major = kProtocolMajor;
  preface.protocol_minor = kProtocolMinor;
  std::strncpy(preface.release, GPUWIRE_VERSION, sizeof preface.release - 1);
  return preface;
}

Preface refusing_preface(RefusalCode code, std::string& text) {
  Preface preface = own_preface();
  if (text.size() > kRefusalBytesMax) text.resize(kRefusalBytesMax);
  preface.status = uint32_t(code);
  preface.text_bytes = uint32_t(text.size());
  return preface;
}

PrefaceBytes encode(const Preface& preface) {
  PrefaceBytes bytes;
  std::memcpy(bytes.data(), &preface, sizeof preface);
  return bytes;
}

Preface decode(const PrefaceBytes& bytes) {
  Preface preface;
  std::memcpy(static_cast<void*>(&preface), bytes.data(), sizeof preface);
  return preface;
}

std::string version_text(const Preface& preface) {
  std::string_view release(preface.release, strnlen(preface.release, sizeof preface.release));
  return fmt::format("{}.{} (release {})", preface.protocol_major, preface.protocol_minor, printable(release));
}

RefusalCode check_client(const PrefaceBytes& bytes, std::string& text) {
  if (!magic_matches(bytes)) {
    text = fmt::format("this is a gpuwire server, and the client does not speak gpuwire (it began with \"{}\")",
                       printable({reinterpret_cast<const char*>(bytes.data()), kStrangerBytesShown}));
    return RefusalCode::not_gpuwire;
  }
  Preface client = decode(bytes);
  if (client.protocol_major != kProtocolMajor) {
    text = mismatch_text(client, own_preface());
    return RefusalCode::version;
  }
  return RefusalCode::accepted;
}

ServerAnswer check_server(std::span<const std::byte> received, Preface& preface, std::string& text) {
  if (!magic_matches(received)) {
    text = describe_stranger(received);
    return ServerAnswer::not_gpuwire;
  }
  if (received.size() < sizeof(Preface)) return ServerAnswer::incomplete;
  PrefaceBytes bytes;
  std::copy_n(received.begin(), bytes.size(), bytes.begin());
  preface = decode(bytes);
  if (preface.protocol_major != kProtocolMajor || RefusalCode(preface.status) == RefusalCode::version) {
    text = mismatch_text(own_preface(), preface);
    return ServerAnswer::version;
  }
  if (preface.text_bytes > kRefusalBytesMax || (preface.status == 0 && preface.text_bytes)) {
    text = "the server's preface is malformed";
    return ServerAnswer::not_gpuwire;
  }
  return preface.status ? ServerAnswer::refused : ServerAnswer::accepted;
}

std::string describe_stranger(std::span<const std::byte> received) {
  std::string_view text(reinterpret_cast<const char*>(received.data()), received.size());
  if (text.starts_with("HTTP/")) return "not a gpuwire server: an HTTP server answers there";
  if (text.starts_with("SSH-")) return "not a gpuwire server: an SSH server answers there";
  if (text.size() >= 3 && (text[0] == 0x15 || text[0] == 0x16) && text[1] == 0x03)
    return "not a gpuwire server: a TLS server answers there";
  return fmt::format("not a gpuwire server: it answers \"{}\"", printable(text.substr(0, kStrangerBytesShown)));
}

}  // namespace gpuwire::wire
