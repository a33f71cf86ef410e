// `gpuwire admin users`: certificates or tokens and configuration for a list of a tenant's users.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/config/configuration.hpp"
#include "server/identity/administration.hpp"

namespace gpuwire::server {

inline constexpr size_t kUserListBytesMax = 1u << 20;
inline constexpr size_t kUsersOfListMax = 10'000;

struct NewUsers {
  std::string tenant;
  std::filesystem::path list;  // one name a line; "-": standard input
  std::filesystem::path out;   // a folder, in which each user gets one
  bool token = false;          // a token instead of a certificate
  unsigned days = kClientDays;
  std::string server;         // HOST:PORT, for the users' configuration; empty: of the server's certificate and file
  std::string budget;         // of each user, "10h/month"; empty: none
  unsigned sessions_max = 0;  // of each user; 0: no bound
  std::filesystem::path configuration;  // the server's; empty: the usual one, if it is there
};

// Returns the names of a list, in its order. The error has a line for each invalid and each repeated name.
tl::expected<std::vector<std::string>, std::string> read_user_list(const std::string& text);

// Makes the missing credentials, and reports each user on standard output. Users with a valid credential of the tenant
// keep it. Returns the exit status; on failure standard error has the reason, and the credentials made so far are
// valid.
int add_users(const std::filesystem::path& directory, const NewUsers& wanted, WallTime now);

}  // namespace gpuwire::server
