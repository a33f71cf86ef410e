#include "server/chunk_store/broker/tenant_chunks.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/chunk_store/chunk_file.hpp"
#include "server/module_cache/digest.hpp"

namespace gpuwire::server {
namespace {

// The prefix of the keeper entry for a tenant's memory file. The tenant's name follows.
const std::string kKeptPrefix = "chunks/";

uint64_t held_bytes(const OwnedDescriptor& file) {
  constexpr uint64_t kBlockBytes = 512;
  struct stat facts {};
  return file && ::fstat(file.get(), &facts) == 0 ? uint64_t(facts.st_blocks) * kBlockBytes : 0;
}

bool has_size(const OwnedDescriptor& file, uint64_t bytes) {
  struct stat facts {};
  return ::fstat(file.get(), &facts) == 0 && S_ISREG(facts.st_mode) && uint64_t(facts.st_size) == bytes;
}

uint64_t memory_bound(const TenantConfiguration& settings, uint64_t host_bytes) {
  if (settings.dedup_memory_bytes) return *settings.dedup_memory_bytes;
  uint64_t host = settings.host_memory_bytes ? settings.host_memory_bytes : host_bytes;
  return host ? std::min(host / kChunkMemoryPart, kChunkMemoryUsual) : kChunkMemoryUsual;
}

// Returns the exact size of a file that fits this many bytes; 0: no file fits.
uint64_t whole(uint64_t bytes_max) {
  size_t slots = ChunkFile::slots_of(bytes_max);
  return slots ? ChunkFile::file_bytes(slots) : 0;
}

OwnedDescriptor copy_of(const OwnedDescriptor& file) {
  return OwnedDescriptor(file ? ::fcntl(file.get(), F_DUPFD_CLOEXEC, 0) : -1);
}

}  // namespace

void TenantChunks::tenants_changed(const TenantDirectory& tenants) {
  for (const Tenant& tenant : tenants.all()) {
    Store& store = stores_[tenant.id];
    uint64_t memory = tenant.known ? whole(memory_bound(tenant.settings, settings_.host_bytes)) : 0;
    uint64_t disk = tenant.known ? whole(tenant.settings.dedup_disk_bytes) : 0;
    store.name = tenant.settings.name;
    // Running sessions keep their stores.
    if (memory != store.memory_bytes || (store.memory && !has_size(store.memory, memory))) {
      drop_memory(store);
      charge(tenant.id, store);
    }
    if (disk != store.disk_bytes) store.disk.reset();
    if (!disk) drop_disk(store);
    store.memory_bytes = memory, store.disk_bytes = disk;
    charge_if_used(tenant.id, store);
  }
}

void TenantChunks::drop_memory(Store& store) {
  if (store.memory && settings_.keeping) settings_.keeping->remove(kKeptPrefix + store.name);
  // It is unknown whether sessions of an earlier broker are charged for it.
  if (store.charged || (adopting_ && held_bytes(store.memory) > 0))
    store.replaced.push_back({store.memory_bytes, std::move(store.users)});
  store.users.clear();
  store.memory.reset();
  store.charged = false;
}

// Removes the disk file, including that of an earlier server.
void TenantChunks::drop_disk(Store& store) {
  store.disk.reset();
  if (!settings_.directory.empty()) ::unlink(path_of(store).c_str());
}

void TenantChunks::make_memory(Store& store) {
  OwnedDescriptor file(::memfd_create("gpuwire chunks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // A compromised worker can write to the file, but cannot enlarge it.
  bool made = file && ::ftruncate(file.get(), off_t(store.memory_bytes)) == 0 &&
              ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  if (!made) return spdlog::warn("tenant {}: no chunk store in memory: {}", store.name, std::strerror(errno));
  store.memory = std::move(file);
  if (!settings_.keeping) return;
  KeptEntry entry{.session = false, .name = kKeptPrefix + store.name, .text = {}, .descriptors = {}};
  entry.descriptors.push_back(copy_of(store.memory));
  if (entry.descriptors[0]) settings_.keeping->put(std::move(entry));
}

std::filesystem::path TenantChunks::path_of(const Store& store) const {
  return settings_.directory / ("t-" + hex(sha256(std::as_bytes(std::span(store.name.data(), store.name.size())))));
}

// A file of another size belongs to a differently configured store, or a worker has lengthened it. A new file takes its
// place; sessions that have the old file open keep it until their end.
void TenantChunks::make_disk(Store& store) {
  std::error_code ignored;
  std::filesystem::create_directories(settings_.directory.parent_path(), ignored);
  ::mkdir(settings_.directory.c_str(), 0700);
  const std::filesystem::path path = path_of(store);
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  OwnedDescriptor file(::open(path.c_str(), kFlags));
  if (!file || !has_size(file, store.disk_bytes)) {
    ::unlink(path.c_str());
    file.reset(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
    if (!file || ::ftruncate(file.get(), off_t(store.disk_bytes)) != 0)
      return spdlog::warn("tenant {}: no chunk store at {}: {}", store.name, path.string(), std::strerror(errno));
  }
  store.disk = std::move(file);
}

tl::expected<void, std::string> TenantChunks::attach(const SessionRecord& session, SessionSpec& spec,
                                                     ipc::SessionDescriptors& descriptors) {
  auto found = stores_.find(session.tenant_id);
  if (found == stores_.end()) return {};
  // Without a store, copies take longer but are correct.
  Store& store = found->second;
  if (store.memory_bytes && !store.memory) make_memory(store);
  if (store.disk && !has_size(store.disk, store.disk_bytes)) store.disk.reset();
  if (store.disk_bytes && !store.disk) make_disk(store);
  charge_if_used(session.tenant_id, store);
  spec.chunks_charged = store.charged;
  descriptors.chunk_memory = copy_of(store.memory);
  descriptors.chunk_disk = copy_of(store.disk);
  if (store.memory) store.users.insert(session.number);
  return {};
}

// Charges the store once it has data. Until then the charge is on the worker that fills it.
void TenantChunks::charge_if_used(scheduler::TenantId tenant, Store& store) {
  if (store.charged || held_bytes(store.memory) == 0) return;
  store.charged = true;
  charge(tenant, store);
}

void TenantChunks::charge(scheduler::TenantId tenant, Store& store) {
  if (!adopting_) std::erase_if(store.replaced, [](const Replaced& one) { return one.users.empty(); });
  uint64_t bytes = store.charged ? store.memory_bytes : 0;
  for (const Replaced& one : store.replaced) bytes += one.bytes;
  if (bytes != store.charge_notified) settings_.charge(tenant, bytes);
  store.charge_notified = bytes;
}

void TenantChunks::ended(const SessionRecord& session) {
  auto found = stores_.find(session.tenant_id);
  if (found == stores_.end()) return;
  Store& store = found->second;
  store.users.erase(session.number);
  for (Replaced& one : store.replaced) one.users.erase(session.number);
  charge_if_used(session.tenant_id, store);
  charge(session.tenant_id, store);
}

void TenantChunks::restore(std::vector<KeptEntry>& entries, const TenantDirectory& tenants) {
  adopting_ = true;
  for (const Tenant& tenant : tenants.all()) {
    for (KeptEntry& entry : entries) {
      if (entry.name != kKeptPrefix + tenant.settings.name || entry.descriptors.size() != 1) continue;
      Store& store = stores_[tenant.id];
      store.name = tenant.settings.name;
      store.memory = std::move(entry.descriptors[0]);
      struct stat facts {};
      if (::fstat(store.memory.get(), &facts) == 0) store.memory_bytes = uint64_t(facts.st_size);
    }
  }
  // The tenant was removed: the keeper would otherwise hold its memory as long as any session runs.
  for (const KeptEntry& entry : entries) {
    if (!entry.name.starts_with(kKeptPrefix)) continue;
    const Tenant* tenant = tenants.find(std::string_view(entry.name).substr(kKeptPrefix.size()));
    if (!tenant && settings_.keeping) settings_.keeping->remove(entry.name);
  }
}

// The session has its tenant's store. Now decide whether new sessions get the same store.
tl::expected<void, std::string> TenantChunks::adopt(const SessionRecord& session, const KeptSession&, KeptEntry&) {
  if (auto found = stores_.find(session.tenant_id); found != stores_.end()) {
    Store& store = found->second;
    (store.replaced.empty() ? store.users : store.replaced.back().users).insert(session.number);
  }
  return {};
}

void TenantChunks::all_adopted() {
  adopting_ = false;
  for (auto& [tenant, store] : stores_) charge(tenant, store);
}

void TenantChunks::add(Snapshot& snapshot) {
  for (TenantMetrics& figures : snapshot.tenants) {
    auto found = std::find_if(stores_.begin(), stores_.end(),
                              [&](const auto& store) { return store.second.name == figures.name; });
    if (found == stores_.end()) continue;
    const Store& store = found->second;
    figures.chunk_memory_bytes = std::min(held_bytes(store.memory), store.memory_bytes);
    figures.chunk_memory_limit_bytes = store.memory_bytes;
    figures.chunk_disk_bytes = held_bytes(store.disk);
    figures.chunk_disk_limit_bytes = store.disk_bytes;
  }
}

}  // namespace gpuwire::server
