// Connects the GPU scheduler with the broker: beginnings and ends of sessions, tenants' settings, figures.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "server/base/lifetime.hpp"
#include "server/gpu_scheduler/gpu_scheduler.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/control/metrics_source.hpp"

namespace gpuwire::server {

// The broker's thread only. Exists as long as the broker, whose sessions it ends through `control`.
class GpuSchedulerPart final : public SessionAttachments, public MetricsSource {
 public:
  GpuSchedulerPart(boost::asio::io_context& io, SessionControl& control, GpuSchedulerSettings settings);

  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void ended(const SessionRecord& session) override;

  // As GpuScheduler's.
  void set_scavenger(scheduler::SessionId session, bool scavenger) { scheduler_.set_scavenger(session, scavenger); }
  // Returns the session's charge since it began, as in its figures. Nothing: there is no such session.
  std::optional<std::chrono::nanoseconds> charged(scheduler::SessionId session);

  // Returns the session's time without a call and without work in flight. Nothing: it works, or there is no such
  // session.
  std::optional<std::chrono::nanoseconds> idle(scheduler::SessionId session);

  void refresh() override { taken_at_ = {}; }
  void add(const SessionRecord& session, SessionMetrics& figures) override;
  void add(Snapshot& snapshot) override;

 private:
  void warn(scheduler::SessionId session, const std::string& text);
  void end(scheduler::SessionId session, const StopOrder& order);
  const GpuSchedulerSnapshot& figures();

  boost::asio::io_context& io_;
  SessionControl& control_;
  std::map<std::string, scheduler::TenantId> tenants_;
  GpuSchedulerSnapshot taken_;
  PageTime taken_at_{};
  // Functions that the GPU scheduler's thread posts may run after this object; that thread ends before this object is
  // destroyed.
  Lifetime lifetime_;
  // Has a lock of its own.
  mutable GpuScheduler scheduler_;
};

}  // namespace gpuwire::server
