// The arbiter among the broker's parts: sessions that begin and end, tenants' settings, figures.
#pragma once

#include <functional>

#include <boost/asio/io_context.hpp>

#include "server/arbiter/arbiter.hpp"
#include "server/broker/session_parts.hpp"
#include "server/control/figure_source.hpp"

namespace gpuwire::server {

// The broker's thread only. Lives as long as the broker, whose sessions it ends through `control`.
class ArbiterPart final : public SessionAttachments, public FigureSource {
 public:
  ArbiterPart(boost::asio::io_context& io, SessionControl& control, ArbiterSettings settings);
  ~ArbiterPart() override;

  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionOrder& order, Handoff& handoff) override;
  void note(const SessionRecord& session, KeptSession& kept) const override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept, KeptEntry& descriptors) override;
  void ended(const SessionRecord& session) override;

  void refresh() override { taken_at_ = {}; }
  void add(const SessionRecord& session, SessionFigures& figures) override;
  void add(Snapshot& snapshot) override;

 private:
  void warn(scheduler::SessionId session, const std::string& text);
  void end(scheduler::SessionId session, const std::string& why);
  const ArbiterSnapshot& figures();

  boost::asio::io_context& io_;
  SessionControl& control_;
  std::map<std::string, scheduler::TenantId> tenants_;
  ArbiterSnapshot taken_;
  PageTime taken_at_{};
  // What the arbiter's thread posts may be run after this object.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  mutable Arbiter arbiter_;  // has a lock of its own
};

}  // namespace gpuwire::server
