// The requests of `gpuwire admin` to a running server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

// The server by its control socket; empty: the only one that runs here. Errors are one phrase; those of a reload one
// line for each mistake.
struct RunningServer {
  std::string control;

  // The sessions that there are, as a table or as JSON.
  tl::expected<std::string, std::string> sessions(bool json) const;
  // The result, in words. `reason` is shown on the clients; empty: the server's own words.
  tl::expected<std::string, std::string> end_session(uint64_t session, const std::string& reason) const;
  tl::expected<std::string, std::string> end_tenant(const std::string& tenant, const std::string& reason) const;
  // `yes`: also when sessions would be lost.
  tl::expected<std::string, std::string> reload(bool yes) const;
  // A code that signs an administrator in to the web page, in words.
  tl::expected<std::string, std::string> web_code() const;
  // For its audit log: the revocation and its author. `directory`: of the identity; a server that uses another one
  // refuses. Without `control` all servers that run here are notified.
  tl::expected<void, std::string> note_revocation(const std::filesystem::path& directory, const std::string& tenant,
                                                  const std::string& identity) const;
};

}  // namespace gpuwire::server
