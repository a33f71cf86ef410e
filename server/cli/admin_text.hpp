// The texts of `gpuwire admin`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "server/identity/administration.hpp"

namespace gpuwire::server::admin_text {

extern const char* const kDescription;
extern const char* const kFooter;

std::string initialised(const std::filesystem::path& directory, const ServerFacts& facts);
std::string added(const NewCredential& made, const std::filesystem::path& out);
// Returns the steps that the tenant takes with the file.
std::string how_to_use(const NewCredential& made, const std::filesystem::path& out,
                       const std::filesystem::path& authority);
// Returns the lines that the server's configuration lacks. `file`: empty: the configuration is unknown.
std::string configuration_lines(const std::string& tenant, const std::filesystem::path& file);
std::string job_token_json(const NewCredential& made);
std::string revoked(const std::string& what, const std::vector<Credential>& credentials, bool end_sessions);
std::string names_gone(const std::vector<std::string>& hosts);
// `authority`: the authority's certificate is new, too.
std::string renewed(const ServerFacts& facts, bool authority);
// "alice  certificate  3f2a...  2027-11-21 17:00 UTC  counts"
std::string list(const ServerFacts& facts, const Register& credentials, WallTime now);
std::string list_json(const ServerFacts& facts, const Register& credentials, WallTime now);

}  // namespace gpuwire::server::admin_text
