// The budgets of tenants and users: charges sessions, and decides which sessions become scavengers and which programs
// wait.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/admission/session_budgets.hpp"
#include "server/broker/admission/tenants.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/budget/budget_book.hpp"
#include "server/budget/budget_file.hpp"
#include "server/control/metrics_source.hpp"

namespace gpuwire::server {

// The interval at which sessions are charged. A budget is exceeded by at most this much GPU time before its sessions
// become scavengers, and a month's last charge is late by at most this time.
inline constexpr std::chrono::milliseconds kBudgetPollTime{1000};
// The largest number of a tenant's users in the figures, which show the users with the largest usage.
inline constexpr size_t kUsersShownMax = 1024;

// The broker's thread only. Add this part after the GPU scheduler: at a session's end the broker calls it first.
class Budgets final : public SessionAttachments, public MetricsSource, public SessionBudgets {
 public:
  struct Deps {
    // Returns the GPU scheduler's charge of a session since its beginning; nothing: the scheduler does not know the
    // session.
    std::function<std::optional<std::chrono::nanoseconds>(scheduler::SessionId)> charged;
    // Makes the GPU scheduler serve the session as a scavenger, or in its tenant's class again.
    std::function<void(scheduler::SessionId, bool)> set_scavenger;
    // Called when the set of used-up budgets has changed: admission checks waiting programs again.
    std::function<void()> changed;
    std::function<std::chrono::system_clock::time_point()> now = &std::chrono::system_clock::now;
  };
  // `file`: empty: the default one. The file is opened when a tenant or user has a budget. The callbacks of `around`
  // outlive this object.
  Budgets(boost::asio::io_context& io, SessionRegistry& registry, std::filesystem::path file, Deps around);
  ~Budgets();

  bool used_up(const SessionRecord& session) const override;
  std::string why_held(const SessionRecord& session) const override;

  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void all_adopted() override;
  void ended(const SessionRecord& session) override;
  void add(Snapshot& snapshot) override;

  // Charges all sessions, and changes the classes of affected sessions.
  void poll();

 private:
  // The accounts whose budget is used up, and whether the budget is hard.
  using UsedUp = std::map<BudgetBook::Account, bool>;

  void open();
  void begin_here();
  void charge(const SessionRecord& session);
  void judge();
  UsedUp used_up_now() const;
  bool is_used_up(const BudgetBook::Account& account, const MonthlyBudget& budget) const;
  void apply(const SessionRecord& session);
  void save();
  void poll_later();
  Month month() const { return Month(around_.now()); }

  SessionRegistry& registry_;
  const std::filesystem::path path_;
  const Deps around_;
  boost::asio::steady_timer timer_;
  std::map<std::string, TenantConfiguration> tenants_;
  // Anybody has a budget.
  bool wanted_ = false;
  // The disk had no file, and sessions may still be adopted.
  bool fresh_ = false;
  // The book counts: from the first budget until this object is destroyed.
  bool opened_ = false;
  BudgetBook book_;
  std::optional<BudgetFile> file_;
  // BudgetBook::changes() of the file's content.
  uint64_t saved_ = 0;
  // As it was logged last.
  std::string save_error_;
  // At the last look.
  UsedUp used_up_;
  // Sessions with GPUs, as the GPU scheduler knows them.
  std::map<scheduler::SessionId, bool> scavengers_;
  bool polling_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
