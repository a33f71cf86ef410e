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
  // One name a line; "-": standard input.
  std::filesystem::path list;
  // A folder, in which each user gets one.
  std::filesystem::path out;
  // A token instead of a certificate.
  bool token = false;
  unsigned days = kClientDays;
  // HOST:PORT, for the users' configuration; empty: of the server's certificate and file.
  std::string server;
  // The budget of each user, "10h/month"; empty: none.
  std::string budget;
  // The bound for each user; 0: no bound.
  unsigned sessions_max = 0;
  // The server's; empty: the usual one, if it is there.
  std::filesystem::path configuration;
};

// Returns the names of a list, in its order. The error has a line for each invalid and each repeated name.
tl::expected<std::vector<std::string>, std::string> read_user_list(const std::string& text);

// Makes the missing credentials, and reports each user on standard output. Users with a valid credential of the tenant
// keep it. Returns the exit status; on failure standard error has the reason, and the credentials made so far are
// valid.
int add_users(const std::filesystem::path& directory, const NewUsers& wanted, WallTime now);

}  // namespace gpuwire::server
