// The folder of a server's identity: 0700, its files 0600, each replaced atomically. Its readers refuse files that
// others could have read.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/identity/register.hpp"

namespace gpuwire::server {

inline constexpr std::string_view kAuthorityCertificateFile = "ca.pem", kAuthorityKeyFile = "ca.key",
                                  kServerCertificateFile = "server.pem", kServerKeyFile = "server.key",
                                  kRegisterFile = "register.json";
inline constexpr size_t kPemBytesMax = 1u << 20;
inline constexpr unsigned kLockWaitMs = 5000;  // for another `gpuwire admin` to finish

// As root /etc/gpuwire/identity, else gpuwire/server in the user's configuration folder.
std::filesystem::path default_identity_directory();

// The error that the folder has no identity, with the command that makes one.
std::string why_no_identity(const std::filesystem::path& directory);

// One process at a time changes the folder; readers need no lock. Released by the destructor.
class IdentityLock {
 public:
  static tl::expected<IdentityLock, std::string> take(const std::filesystem::path& directory);
  IdentityLock(IdentityLock&& other) noexcept;
  IdentityLock& operator=(IdentityLock&&) = delete;
  ~IdentityLock();

 private:
  explicit IdentityLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Makes it, 0700, with its parents. The error: it cannot be, or is there and open to others.
tl::expected<void, std::string> make_identity_directory(const std::filesystem::path& directory);

// All errors are "FILE: why".
// Opens a file of ours for reading: regular, no link, of this user or root, for nobody else. A descriptor (the
// caller's).
tl::expected<int, std::string> open_private_file(const std::filesystem::path& file);
tl::expected<std::string, std::string> read_private_file(const std::filesystem::path& file, size_t bytes_max);
// From the beginning of an open one, whatever its position.
tl::expected<std::string, std::string> read_descriptor(int descriptor, std::string_view name, size_t bytes_max);
// 0600; a reader sees the old text or the new one. Written by root into another user's folder, the file belongs to that
// user, the server's.
tl::expected<void, std::string> replace_private_file(const std::filesystem::path& file, std::string_view text);
// 0600, of the caller, and must not be there yet.
tl::expected<void, std::string> create_private_file(const std::filesystem::path& file, std::string_view text);

tl::expected<Register, std::string> read_register(const std::filesystem::path& directory);
tl::expected<void, std::string> write_register(const std::filesystem::path& directory, const Register& credentials);

}  // namespace gpuwire::server
