#include "protocol/tls/credentials.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

namespace gpuwire::tls {

namespace {

using Failed = tl::unexpected<std::string>;

constexpr size_t kAuthoritiesMax = 64;  // in one file

// The content of a private file. The destructor overwrites the memory.
struct Contents {
  std::string text;
  Contents() = default;
  Contents(Contents&&) = default;
  Contents& operator=(Contents&&) = default;
  ~Contents() { OPENSSL_cleanse(text.data(), text.size()); }
};

tl::expected<void, std::string> read_descriptor(int descriptor, const std::string& name, bool secret,
                                                std::string& text) {
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return Failed(fmt::format("{}: {}", name, std::system_category().message(errno)));
  if (!S_ISREG(facts.st_mode)) return Failed(fmt::format("{}: not a file", name));
  if (secret && (facts.st_mode & (S_IRWXG | S_IRWXO)))
    return Failed(fmt::format("{} holds a secret that others can read: chmod 600 {}", name, name));
  text.resize(kCredentialBytesMax + 1);
  size_t got = 0;
  while (got < text.size()) {
    ssize_t more = ::read(descriptor, text.data() + got, text.size() - got);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return Failed(fmt::format("{}: {}", name, std::system_category().message(errno)));
    if (more == 0) break;
    got += size_t(more);
  }
  if (got == text.size()) return Failed(fmt::format("{} is longer than {} bytes", name, kCredentialBytesMax));
  text.resize(got);
  return {};
}

tl::expected<Contents, std::string> read_file(const std::filesystem::path& file, bool secret) {
  Contents contents;
  int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (descriptor < 0) return Failed(fmt::format("{}: {}", file.string(), std::system_category().message(errno)));
  auto done = read_descriptor(descriptor, file.string(), secret, contents.text);
  ::close(descriptor);
  if (!done) return Failed(done.error());
  return contents;
}

// One block of a PEM file.
struct Block {
  char* label = nullptr;
  char* header = nullptr;
  unsigned char* bytes = nullptr;
  long size = 0;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    OPENSSL_free(label);
    OPENSSL_free(header);
    OPENSSL_clear_free(bytes, size_t(size));
  }
  bool read(BIO* from) { return PEM_read_bio(from, &label, &header, &bytes, &size) == 1; }
};

struct Blocks {
  std::vector<Certificate> certificates;
  PrivateKey key;
};

tl::expected<void, std::string> take_block(const Block& block, Blocks& blocks) {
  std::string_view label = block.label;
  const unsigned char* at = block.bytes;
  if (label == PEM_STRING_X509) {
    Certificate certificate(d2i_X509(nullptr, &at, block.size));
    if (!certificate) return Failed("holds a certificate that cannot be read");
    if (blocks.certificates.size() == kAuthoritiesMax) return Failed("holds too many certificates");
    blocks.certificates.push_back(std::move(certificate));
  } else if (label == PEM_STRING_PKCS8) {
    return Failed("holds a private key with a password, which gpuwire does not ask for");
  } else if (label.ends_with("PRIVATE KEY")) {
    if (blocks.key) return Failed("holds more than one private key");
    blocks.key.reset(d2i_AutoPrivateKey(nullptr, &at, block.size));
    if (!blocks.key) return Failed("holds a private key that cannot be read");
  }
  return {};
}

tl::expected<Blocks, std::string> read_blocks(const std::filesystem::path& file, bool secret) {
  auto contents = read_file(file, secret);
  if (!contents) return Failed(contents.error());
  ForkSafe fork_safe;
  ERR_clear_error();
  Bio from(BIO_new_mem_buf(contents->text.data(), int(contents->text.size())));
  Blocks blocks;
  for (;;) {
    Block block;
    if (!from || !block.read(from.get())) break;
    if (auto taken = take_block(block, blocks); !taken)
      return Failed(fmt::format("{} {}", file.string(), taken.error()));
  }
  bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!at_end) return Failed(fmt::format("{} is damaged: not in PEM format to its end", file.string()));
  return blocks;
}

}  // namespace

tl::expected<Credentials, std::string> read_identity(const std::filesystem::path& file) {
  auto blocks = read_blocks(file, true);
  if (!blocks) return Failed(blocks.error());
  if (!blocks->key) return Failed(fmt::format("{} holds no private key: it is not an identity", file.string()));
  if (blocks->certificates.empty())
    return Failed(fmt::format("{} holds no certificate: it is not an identity", file.string()));
  Credentials credentials;
  credentials.key = std::move(blocks->key);
  credentials.certificate = std::move(blocks->certificates.front());
  ForkSafe fork_safe;
  bool fits = X509_check_private_key(credentials.certificate.get(), credentials.key.get()) == 1;
  ERR_clear_error();
  if (!fits) return Failed(fmt::format("{}: the private key does not belong to the first certificate", file.string()));
  credentials.authorities.assign(std::make_move_iterator(blocks->certificates.begin() + 1),
                                 std::make_move_iterator(blocks->certificates.end()));
  credentials.authorities_from = file.string();
  return credentials;
}

tl::expected<void, std::string> read_authorities(const std::filesystem::path& file, Credentials& credentials) {
  auto blocks = read_blocks(file, false);
  if (!blocks) return Failed(blocks.error());
  if (blocks->certificates.empty()) return Failed(fmt::format("{} holds no certificate", file.string()));
  credentials.authorities = std::move(blocks->certificates);
  credentials.authorities_from = file.string();
  return {};
}

tl::expected<std::string, std::string> read_token(const std::filesystem::path& file) {
  auto contents = read_file(file, true);
  if (!contents) return Failed(contents.error());
  std::string_view rest = contents->text;
  while (!rest.empty()) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    constexpr std::string_view kBlank = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
    if (line.empty() || line.front() == '#') continue;
    line = line.substr(0, line.find_last_not_of(kBlank) + 1);
    bool printable = std::all_of(line.begin(), line.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (!printable || line.size() < kTokenBytesMin || line.size() > kTokenBytesMax) break;
    return std::string(line);
  }
  return Failed(fmt::format("{} holds no token", file.string()));
}

}  // namespace gpuwire::tls
