// The requests of `gpuwire admin` to a running server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// `control`: the server's control socket; empty: the only server on this machine. An error is one phrase; the error of
// a reload has one line for each mistake.
struct RunningServer {
  std::string control;

  // Returns the present sessions, as a table or as JSON.
  tl::expected<std::string, std::string> sessions(bool json) const;
  // Returns the result, in words. The clients show `reason`; empty: the server's own words.
  tl::expected<std::string, std::string> end_session(uint64_t session, const std::string& reason) const;
  tl::expected<std::string, std::string> end_tenant(const std::string& tenant, const std::string& reason) const;
  // Suspends the session, or all sessions of the tenant if there is no session; or resumes them. Returns a line for
  // each session, with the result or the reason why not.
  struct Moves {
    std::string text;
    bool all = true;  // every one was done
  };
  tl::expected<Moves, std::string> suspend(std::optional<uint64_t> session, const std::string& tenant) const;
  tl::expected<Moves, std::string> resume(std::optional<uint64_t> session, const std::string& tenant) const;
  // Drains the GPU, ends that, or changes nothing; all return the present state.
  struct DrainedSession {
    uint64_t id = 0;
    bool away = false;
    std::string text;  // its state, or why it is not away yet
  };
  struct Drain {
    bool drained = false;
    bool changed = false;  // by this request
    std::vector<DrainedSession> sessions;
  };
  tl::expected<Drain, std::string> drain(unsigned gpu) const;
  tl::expected<Drain, std::string> undrain(unsigned gpu) const;
  tl::expected<Drain, std::string> drain_of(unsigned gpu) const;
  // `yes`: reload even if sessions would be lost.
  tl::expected<std::string, std::string> reload(bool yes) const;
  // Returns a code for an administrator's sign-in to the web page, in words.
  tl::expected<std::string, std::string> web_code() const;
  // Reports the revocation and its author for the server's audit log. `directory`: of the identity; a server that uses
  // another one refuses. Without `control` the function notifies all servers on this machine.
  tl::expected<void, std::string> note_revocation(const std::filesystem::path& directory, const std::string& tenant,
                                                  const std::string& identity) const;
};

}  // namespace gpuwire::server
