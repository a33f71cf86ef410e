// What `gpuwire admin` asks of a server that runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

// Which one: its control socket; empty: the only one that runs here. Errors are one phrase; those of a reload one line
// for each mistake.
struct RunningServer {
  std::string control;

  // The sessions that there are, as a table or as JSON.
  tl::expected<std::string, std::string> sessions(bool json) const;
  // What was done, in words. `reason` is shown on the clients; empty: the server's own words.
  tl::expected<std::string, std::string> end_session(uint64_t session, const std::string& reason) const;
  tl::expected<std::string, std::string> end_tenant(const std::string& tenant, const std::string& reason) const;
  tl::expected<std::string, std::string> reload() const;
  // For its audit log: who has revoked what. `directory`: of the identity; a server that uses another one refuses.
  // Without `control` all servers that run here are told.
  tl::expected<void, std::string> note_revocation(const std::filesystem::path& directory, const std::string& tenant,
                                                  const std::string& identity) const;
};

}  // namespace gpuwire::server
