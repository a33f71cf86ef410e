// The tenant page: memory that the broker shares with all workers of one tenant, and with nobody else. What each
// session holds, and how much all of them may hold together. README.md says who writes what and why no order of events
// lets them exceed it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

inline constexpr uint64_t kTenantPageMagic = 0x3165'6761'7074'6e74;  // "tntpage1"
inline constexpr uint32_t kTenantPageVersion = 2;
inline constexpr uint32_t kPageDevicesMax = 64;
inline constexpr uint32_t kPageSlotsMax = 256;  // sessions of a tenant at one time, and kLeftSlot
inline constexpr uint32_t kLeftSlot = 0;  // the broker's own: what ended sessions have left in the hands of others
inline constexpr uint32_t kHostColumn = kPageDevicesMax;  // pinned memory of the server
inline constexpr uint32_t kPageColumns = kPageDevicesMax + 1;
// No figure in a page is larger; a larger one that is read from it counts as this.
inline constexpr uint64_t kPageBytesMax = uint64_t{1} << 48;

// A device of the server, or its pinned memory. Bytes.
struct PageColumn {
  // Written by the broker.
  std::atomic<uint64_t> allowance;      // the sum of `used` never exceeds it
  std::atomic<uint64_t> limit;          // the tenant's; the allowance may be raised up to it
  std::atomic<uint64_t> reach;          // how far the allowance could be raised now; a hint
  std::atomic<uint64_t> context_bytes;  // what a context takes by itself
  // Each written by one session's worker; the broker zeroes it when the worker is gone.
  alignas(64) std::atomic<uint64_t> used[kPageSlotsMax];
  std::atomic<uint64_t> peak[kPageSlotsMax];    // the most that `used` has been
  std::atomic<uint64_t> shared[kPageSlotsMax];  // of `used`: what other sessions may hold on to after the session
};

struct PageSlot {
  std::atomic<uint64_t> session;     // scheduler::SessionId; 0: free. Written by the broker
  std::atomic<uint32_t> client_pid;  // as the client says. Written by the broker
  std::atomic<uint32_t> imports;     // 1: holds memory that another session made. Written by the session's worker
};

struct TenantPage {
  uint64_t magic;
  uint32_t version;
  uint32_t bytes;                           // of all of it
  alignas(64) std::atomic<uint32_t> turn;   // 0, or 1 + the slot whose worker is reserving
  alignas(64) std::atomic<uint32_t> slots;  // those from here on were never used. Written by the broker, never falls
  alignas(64) PageSlot slot[kPageSlotsMax];
  alignas(64) PageColumn column[kPageColumns];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(TenantPage) < 1u << 19);

// A page in this process's memory. Unmapped when it goes.
class PageMapping {
 public:
  // A fresh page of zeroes, of a size that nobody can change. Also gives the descriptor to hand on.
  static tl::expected<PageMapping, std::string> create();
  // One that an earlier broker made, with its descriptor to hand on.
  static tl::expected<PageMapping, std::string> adopt(OwnedDescriptor descriptor);
  // One that the broker made. The error says what is wrong with it.
  static tl::expected<PageMapping, std::string> open(int descriptor);

  PageMapping(PageMapping&& other) noexcept;
  PageMapping& operator=(PageMapping&& other) noexcept;
  ~PageMapping();

  TenantPage* operator->() const { return page_; }
  TenantPage& operator*() const { return *page_; }
  // -1 in a mapping that was opened: the caller keeps that one.
  int descriptor() const { return descriptor_.get(); }

 private:
  explicit PageMapping(TenantPage* page) : page_(page) {}
  TenantPage* page_ = nullptr;
  OwnedDescriptor descriptor_;
};

// What the broker alone knows of a tenant's allowances, and the next broker has to: memory that outlives the process,
// and that no worker ever sees.
class AllowanceRecord {
 public:
  static tl::expected<AllowanceRecord, std::string> create();
  static tl::expected<AllowanceRecord, std::string> adopt(OwnedDescriptor descriptor);
  AllowanceRecord(AllowanceRecord&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), descriptor_(std::move(other.descriptor_)) {}
  AllowanceRecord& operator=(AllowanceRecord&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~AllowanceRecord();

  uint64_t& operator[](uint32_t device) { return bytes_[device]; }  // device < kPageDevicesMax
  int descriptor() const { return descriptor_.get(); }

 private:
  explicit AllowanceRecord(uint64_t* bytes, OwnedDescriptor descriptor)
      : bytes_(bytes), descriptor_(std::move(descriptor)) {}
  uint64_t* bytes_ = nullptr;
  OwnedDescriptor descriptor_;
};

// Every figure from a page goes through this: others write there.
inline uint64_t bounded(uint64_t bytes) { return bytes < kPageBytesMax ? bytes : kPageBytesMax; }

// What all sessions of the tenant hold in a column, at most kPageBytesMax.
uint64_t used_by_all(const TenantPage& page, uint32_t column);

// The broker's: lowers the allowance to `target`, or to what is in use if that is more. Gives the allowance that holds
// from now on.
uint64_t lower_allowance(TenantPage& page, uint32_t column, uint64_t target);
// The broker's, when the worker is gone: nothing is held in the slot, and it is not its turn any more. What others may
// hold on to moves to kLeftSlot.
void clear_slot(TenantPage& page, uint32_t slot);

}  // namespace gpuwire::server
