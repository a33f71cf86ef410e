// A broker's ledger with sessions in their workers' view, and a successor's ledger.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "server/ledger/broker/broker_ledger.hpp"
#include "server/ledger/worker/session_ledger.hpp"
#include "test/server/broker/keeper/kept_entries.hpp"

namespace gpuwire::test {

inline constexpr uint64_t kMiB = 1u << 20;
using namespace gpuwire::server;
using scheduler::SessionId;
using scheduler::TenantId;

class Control final : public SessionControl {
 public:
  bool send(SessionId session, ipc::Message message) override {
    REQUIRE(std::holds_alternative<ipc::Answer>(message));
    answers[session] = std::get<ipc::Answer>(message).yes;
    return true;
  }
  void warn(SessionId, const std::string&) override {}
  bool stop(SessionId, const StopOrder&) override { return true; }
  void reconsider_waiting() override { ++reconsidered; }

  std::map<SessionId, bool> answers;
  unsigned reconsidered = 0;
};

inline TenantConfiguration tenant(const std::string& name, uint64_t guaranteed, uint64_t limit) {
  TenantConfiguration settings{.name = name};
  settings.memory = {guaranteed, limit};
  return settings;
}

// A session in its worker's view. Its requests are answered at once or not at all.
class Worker final : public AllowanceSource {
 public:
  Worker(BrokerLedger& broker, Control& control, const TenantDirectory& tenants, const std::string& tenant,
         uint64_t number, std::vector<uint32_t> devices, uint64_t reserved_bytes = 0, const std::string& user = {})
      : broker_(broker), control_(control) {
    record.number = SessionId(number);
    record.tenant = tenant;
    record.tenant_id = tenants.find(tenant)->id;
    record.user = user;
    record.devices = devices;
    record.memory_bytes = reserved_bytes;
    if (reserved_bytes) REQUIRE(broker.reserve(record.number, record.tenant_id, user, devices, reserved_bytes));
    for (uint32_t device : devices) spec.devices.push_back({.index = device});
    ipc::SessionDescriptors descriptors;
    REQUIRE(broker.attach(record, spec, descriptors));
    REQUIRE(descriptors.tenant_page);
    page_.emplace(SharedPage<TenantPage>::map(std::move(descriptors.tenant_page)).value());
    ledger = std::make_unique<SessionLedger>(**page_, spec.ledger_slot, this);
    REQUIRE(descriptors.user_page);
    users_.emplace(SharedPage<UserPage>::map(std::move(descriptors.user_page)).value());
    ledger->set_user(**users_, spec.ledger_user);
  }

  bool ask(uint32_t column, uint64_t bytes) override { return ask(column, bytes, false); }
  bool ask_ahead(uint32_t column, uint64_t bytes) override { return ask(column, bytes, true); }
  bool ask(uint32_t column, uint64_t bytes, bool ahead) {
    ipc::Message question = ipc::MemoryWanted{++asked, column, bytes, ahead};
    control_.answers.erase(record.number);
    REQUIRE(broker_.on_message(record, question));
    return control_.answers.contains(record.number) && control_.answers[record.number];
  }
  TenantPage& page() { return **page_; }
  UserPage& users() { return **users_; }

  SessionRecord record;
  SessionSpec spec;
  std::unique_ptr<SessionLedger> ledger;
  unsigned asked = 0;

 private:
  BrokerLedger& broker_;
  Control& control_;
  std::optional<SharedPage<TenantPage>> page_;
  std::optional<SharedPage<UserPage>> users_;
};

struct Fixture {
  // `shortage`: how long a request may wait; the default is longer than any test.
  explicit Fixture(std::vector<TenantConfiguration> configured,
                   std::chrono::milliseconds shortage = std::chrono::hours(1))
      : tenants(std::move(configured)), ledger(io, control, {.prewarmed_workers = 1, .shortage = shortage}) {
    std::vector<ServerDevice> devices{{.index = 0, .bytes = 1000 * kMiB}, {.index = 1, .bytes = 1000 * kMiB}};
    ledger.devices_known(devices);
    ledger.tenants_changed(tenants);
  }
  std::unique_ptr<Worker> begin(const std::string& tenant, std::vector<uint32_t> devices = {0},
                                uint64_t reserved_bytes = 0, const std::string& user = {}) {
    return std::make_unique<Worker>(ledger, control, tenants, tenant, ++number, devices, reserved_bytes, user);
  }
  uint64_t free_bytes(const std::string& tenant, uint32_t device = 0) {
    return ledger.free_bytes(tenants.find(tenant)->id, device);
  }

  boost::asio::io_context io;
  Control control;
  TenantDirectory tenants;
  BrokerLedger ledger;
  uint64_t number = 0;
};

// A successor's ledger for the sessions of `before`, with these tenants.
struct NextLedger {
  boost::asio::io_context io;
  Control control;
  KeptEntries& keeper;
  TenantDirectory tenants;
  BrokerLedger ledger{io, control, {.prewarmed_workers = 1, .keeping = &keeper}};

  NextLedger(KeptEntries& kept, std::vector<TenantConfiguration> configured)
      : keeper(kept), tenants(std::move(configured)) {
    std::vector<ServerDevice> devices{{.index = 0, .bytes = 1000 * kMiB}, {.index = 1, .bytes = 1000 * kMiB}};
    ledger.devices_known(devices);
    auto entries = keeper.all();
    ledger.restore(entries, tenants);
    ledger.tenants_changed(tenants);
  }
  tl::expected<void, std::string> adopt(const BrokerLedger& before, Worker& worker) {
    KeptSession kept;
    before.note(worker.record, kept);
    worker.record.tenant_id = tenants.find(worker.record.tenant)->id;
    KeptEntry none;
    return ledger.adopt(worker.record, kept, none);
  }
  uint64_t free_bytes(const std::string& tenant) const { return ledger.free_bytes(tenants.find(tenant)->id, 0); }
};

struct CachedFixture {
  explicit CachedFixture(std::vector<TenantConfiguration> configured) : tenants(std::move(configured)) {
    std::vector<ServerDevice> devices{{.index = 0, .bytes = 1000 * kMiB}, {.index = 1, .bytes = 1000 * kMiB}};
    ledger.devices_known(devices);
    ledger.tenants_changed(tenants);
  }
  std::unique_ptr<Worker> begin(const std::string& tenant, uint64_t reserved_bytes = 0, const std::string& user = {}) {
    return std::make_unique<Worker>(ledger, control, tenants, tenant, ++number, std::vector<uint32_t>{0},
                                    reserved_bytes, user);
  }

  boost::asio::io_context io;
  Control control;
  KeptEntries keeper;
  TenantDirectory tenants;
  BrokerLedger ledger{io, control, {.prewarmed_workers = 1, .keeping = &keeper}};
  uint64_t number = 0;
};

}  // namespace gpuwire::test
