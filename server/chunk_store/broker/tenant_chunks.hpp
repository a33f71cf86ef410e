// The broker's part of the chunk stores: creates a tenant's files and passes them to the workers of its sessions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/base/owned_descriptor.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/control/metrics_source.hpp"

namespace gpuwire::server {

// The default size of a tenant's store in memory: a part of its host memory, at most this size.
inline constexpr uint64_t kChunkMemoryPart = 16;
inline constexpr uint64_t kChunkMemoryUsual = uint64_t{4} << 30;

// The broker's thread only. It never reads the files: the tenant's workers write their content.
class TenantChunks final : public SessionAttachments, public MetricsSource {
 public:
  struct Settings {
    // The folder of the files on the disk.
    std::filesystem::path directory;
    // Outlives this object; null: nothing outlives the broker.
    EntryStore* keeping = nullptr;
    // Host memory of a tenant whose configuration says nothing; 0: no bound.
    uint64_t host_bytes = 0;
    // Charges this much of the tenant's host memory for its store. Called when the store first has data.
    std::function<void(scheduler::TenantId, uint64_t)> charge = [](scheduler::TenantId, uint64_t) {};
  };
  explicit TenantChunks(Settings settings) : settings_(std::move(settings)) {}

  void tenants_changed(const TenantDirectory& tenants) override;
  tl::expected<void, std::string> attach(const SessionRecord& session, SessionSpec& spec,
                                         ipc::SessionDescriptors& descriptors) override;
  void restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) override;
  tl::expected<void, std::string> adopt(const SessionRecord& session, const KeptSession& kept,
                                        KeptEntry& descriptors) override;
  void all_adopted() override;
  void ended(const SessionRecord& session) override;
  void add(Snapshot& snapshot) override;

 private:
  using Sessions = std::set<scheduler::SessionId>;
  // Memory that no new session gets. It exists while a session that has it runs.
  struct Replaced {
    uint64_t bytes = 0;
    Sessions users;
  };
  struct Store {
    // The tenant's.
    std::string name;
    // The bounds.
    uint64_t memory_bytes = 0, disk_bytes = 0;
    OwnedDescriptor memory, disk;
    bool charged = false;
    // All that the tenant is charged.
    uint64_t charge_notified = 0;
    // The sessions that use `memory`.
    Sessions users;
    // The replaced stores that were charged.
    std::vector<Replaced> replaced;
  };
  void make_memory(Store& store);
  void make_disk(Store& store);
  void drop_memory(Store& store);
  void drop_disk(Store& store);
  void charge_if_used(scheduler::TenantId tenant, Store& store);
  void charge(scheduler::TenantId tenant, Store& store);
  std::filesystem::path path_of(const Store& store) const;

  const Settings settings_;
  std::map<scheduler::TenantId, Store> stores_;
  // Sessions of an earlier broker are still to come.
  bool adopting_ = false;
};

}  // namespace gpuwire::server
