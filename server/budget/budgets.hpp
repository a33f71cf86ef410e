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

// The interval at which sessions are charged while there are any: a budget is exceeded by this much GPU time at most
// before its sessions fall, and a month's last charge is late by no more.
inline constexpr std::chrono::milliseconds kBudgetPollTime{1000};
// The bound of a tenant's users in figures; those that have used most are shown.
inline constexpr size_t kUsersShownMax = 1024;

// The broker's thread only. Add it to the parts behind the GPU scheduler: at a session's end it is asked first.
class Budgets final : public SessionAttachments, public MetricsSource, public SessionBudgets {
 public:
  struct Deps {
    // The GPU scheduler's charge of a session since it began; nothing: it does not know the session.
    std::function<std::optional<std::chrono::nanoseconds>(scheduler::SessionId)> charged;
    // The GPU scheduler serves it as a scavenger from now on, or as its tenant's class again.
    std::function<void(scheduler::SessionId, bool)> set_scavenger;
    // The set of used-up budgets has changed: waiting programs are checked again.
    std::function<void()> changed;
    std::function<std::chrono::system_clock::time_point()> now = &std::chrono::system_clock::now;
  };
  // `file`: empty: the default one. It is opened when a tenant or user has a budget. The callbacks of `around` outlive
  // it.
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

  // Charges all sessions, and changes the classes of those concerned.
  void poll();

 private:
  // By account: those whose budget is used up, and whether that is hard.
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
  bool wanted_ = false;  // anybody has a budget
  bool fresh_ = false;   // nothing was found on the disk, and sessions may still be adopted
  bool opened_ = false;  // the book counts: from the first budget on, until this object goes
  BudgetBook book_;
  std::optional<BudgetFile> file_;
  uint64_t saved_ = 0;                               // BudgetBook::changes() of the file's content
  std::string save_error_;                           // as it was logged last
  UsedUp used_up_;                                   // at the last look
  std::map<scheduler::SessionId, bool> scavengers_;  // sessions with GPUs, as the GPU scheduler knows them
  bool polling_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
