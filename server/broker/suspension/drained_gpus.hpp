// DrainedGpus takes GPUs out of use for as long as an administrator wants: no session begins on them or returns to
// them, and the sessions that have them are suspended as soon as they are idle.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "scheduler/types.hpp"
#include "server/base/lifetime.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/suspension/suspensions.hpp"

namespace gpuwire::server {

// The parts of the broker that it uses; all outlive it.
struct DrainParts {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  Suspensions& suspensions;
  // Returns the session's idle time; nothing: it works.
  std::function<std::optional<scheduler::Duration>(scheduler::SessionId)> idle;
  std::function<void()> changed;  // another set of GPUs is drained
  // For the drained GPUs, by their UUIDs, so that the next server finds them; empty: they are forgotten with this one.
  std::filesystem::path file = {};
  std::function<scheduler::Time()> now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
};

// The broker's thread only.
class DrainedGpus final : public SessionAttachments {
 public:
  explicit DrainedGpus(DrainParts parts);

  // A session that has a drained GPU.
  struct Session {
    scheduler::SessionId number{};
    bool away = false;  // its memory is with the host
    std::string text;   // its state, or why it is not away yet
  };
  struct Drain {
    bool drained = false;
    bool changed = false;  // it is drained, or not any more, by this call
    std::vector<Session> sessions;
  };
  // Drains the GPU until undrain(). All three return the GPU's sessions in their present states. The error: there is no
  // such GPU.
  tl::expected<Drain, std::string> drain(scheduler::DeviceIndex gpu);
  // Its suspended sessions return with their programs' next calls.
  tl::expected<Drain, std::string> undrain(scheduler::DeviceIndex gpu);
  tl::expected<Drain, std::string> drain_of(scheduler::DeviceIndex gpu);

  bool is_drained(scheduler::DeviceIndex gpu) const { return drained_.contains(gpu); }
  // Whether a session's memory is still on the drained GPU.
  bool has_memory_of_sessions(scheduler::DeviceIndex gpu) const;
  // Returns why the session must not return; empty: none of its GPUs is drained.
  std::string why_held(const SessionRecord& session) const;

  void devices_known(std::span<const ServerDevice> devices) override;
  tl::expected<void, std::string> attach(const SessionRecord&, SessionSpec&, ipc::SessionDescriptors&) override {
    return {};
  }
  void ended(const SessionRecord& session) override;

 private:
  using SessionId = scheduler::SessionId;
  using DeviceIndex = scheduler::DeviceIndex;
  // The last attempt to suspend a session.
  struct Attempt {
    bool under_way = false;
    std::string why;  // it was refused
    unsigned count = 0;
    scheduler::Time next{};
  };

  std::vector<Session> sessions_on(DeviceIndex gpu) const;
  Session state_of(const SessionRecord& session) const;
  void poll();
  void poll_later();
  void suspend(const SessionRecord& session);
  void save() const;

  const DrainParts parts_;
  std::vector<std::string> uuids_;  // by GPU
  std::set<DeviceIndex> drained_;
  std::set<std::string> absent_;           // drained GPUs that this machine does not have now
  std::map<SessionId, Attempt> attempts_;  // of sessions with a drained GPU
  boost::asio::steady_timer timer_;
  bool polling_ = false;
  Lifetime lifetime_;
};

// Reads and replaces the file: a heading, and a UUID in each line. Nothing is drained without a file, and no file is
// left if nothing is drained.
tl::expected<std::set<std::string>, std::string> read_drain_file(const std::filesystem::path& file);
tl::expected<void, std::string> write_drain_file(const std::filesystem::path& file, const std::set<std::string>& uuids);

}  // namespace gpuwire::server
