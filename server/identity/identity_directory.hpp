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

// Returns /etc/gpuwire/identity for root, else gpuwire/server in the user's configuration folder.
std::filesystem::path default_identity_directory();

// Returns the error text for a folder without an identity, with the command that makes one.
std::string why_no_identity(const std::filesystem::path& directory);

// Lets one process at a time change the folder; readers need no lock. The destructor releases the lock.
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

// Makes the folder, 0700, with its parents. The error: this failed, or the folder exists and others can access it.
tl::expected<void, std::string> make_identity_directory(const std::filesystem::path& directory);

// All errors are "FILE: reason". Opens a private file for reading: a regular file and no link, owned by this user or
// root, and accessible to nobody else. Returns a descriptor, which the caller owns.
tl::expected<int, std::string> open_private_file(const std::filesystem::path& file);
tl::expected<std::string, std::string> read_private_file(const std::filesystem::path& file, size_t bytes_max);
// Reads an open file from its beginning, whatever its position.
tl::expected<std::string, std::string> read_descriptor(int descriptor, std::string_view name, size_t bytes_max);
// Writes a file of mode 0600; a reader sees the old text or the new one. If root writes into another user's folder, the
// file belongs to that user, as whom the server runs.
tl::expected<void, std::string> replace_private_file(const std::filesystem::path& file, std::string_view text);
// Writes a new file of mode 0600, owned by the caller, which must not exist yet.
tl::expected<void, std::string> create_private_file(const std::filesystem::path& file, std::string_view text);

tl::expected<Register, std::string> read_register(const std::filesystem::path& directory);
tl::expected<void, std::string> write_register(const std::filesystem::path& directory, const Register& credentials);

}  // namespace gpuwire::server
