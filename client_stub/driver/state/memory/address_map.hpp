// The client's map of addresses: ranges of device memory, of pinned host memory and of modules' variables. Device
// addresses are the server's own. The same pages of this process are reserved, so that no host mapping can take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;

enum class RangeKind : uint8_t {
  device,            // cuMemAlloc, cuMemAllocPitch
  pool,              // cuMemAllocAsync and its kin; `owner`: the pool, or 0
  managed,           // cuMemAllocManaged
  mapped,            // reserved by cuMemAddressReserve; mapped_parts() has the parts that cuMemMap has mapped
  variable,          // a module's or library's global; `owner`: its handle
  managed_variable,  // a __managed__ one
  imported,          // opened from another process
  graph,             // allocated by graphs, at the same address in each launch
  host_allocated,    // cuMemHostAlloc, cuMemAllocHost
  host_registered,   // cuMemHostRegister: the program's own memory
};

constexpr bool is_host(RangeKind kind) { return kind >= RangeKind::host_allocated; }
constexpr bool is_managed(RangeKind kind) { return kind == RangeKind::managed || kind == RangeKind::managed_variable; }

struct AddressRange {
  uint64_t base = 0;
  uint64_t bytes = 0;
  RangeKind kind = RangeKind::device;
  int32_t device = -1;              // the program's ordinal; -1: none
  ServerSession* server = nullptr;  // whose memory it is, or where it is pinned
  uint64_t context = 0;             // handle of the context it was made in
  uint64_t owner = 0;
  uint64_t buffer_id = 0;   // CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process, of whichever map; set by insert()
  uint32_t host_flags = 0;  // CU_MEMHOSTALLOC_* or CU_MEMHOSTREGISTER_*
  bool sync_memops = false;
  bool others_know = false;  // was shown to other processes, which may use it when it is freed here
  bool reserved = false;     // its pages are kept in address_reservations()
  // Of a range in mapped_parts(): the devices whose kernels may touch it, a bit for each of the program's ordinals, as
  // cuMemSetAccess has set them. All other memory is accessible from its allocation on.
  uint64_t readable_by = ~uint64_t{0};
  uint64_t writable_by = ~uint64_t{0};

  bool is_accessible() const noexcept { return readable_by != 0; }
  // Returns the context that the memory belongs to for the program; 0: memory of pools and of graphs belongs to none
  // (measured on driver 580).
  uint64_t own_context() const noexcept { return kind == RangeKind::pool || kind == RangeKind::graph ? 0 : context; }
  uint64_t end() const noexcept { return base + bytes; }
  bool contains(uint64_t address, uint64_t count) const noexcept {
    return address >= base && count <= bytes && address - base <= bytes - count;
  }
};

// The ranges by address; they never overlap. Any thread; readers do not exclude each other.
class AddressMap {
 public:
  // Inserts a range. Removes and returns ranges that overlap it: the server gives out an address only when it is free,
  // so they are stale. A range of 0 bytes is not inserted.
  std::vector<AddressRange> insert(AddressRange range);
  // Inserts a range if it overlaps no other. Returns false if it does, or has 0 bytes.
  bool insert_if_free(AddressRange range);
  // Returns the range that holds `address`.
  std::optional<AddressRange> find(uint64_t address) const;
  // Stores the range that holds `address`, and leaves `out` unchanged if there is none. Calls classify their addresses
  // with these functions (place.hpp).
  bool find(uint64_t address, AddressRange& out) const noexcept;
  std::pair<bool, bool> find_both(uint64_t first, AddressRange& first_out, uint64_t second,
                                  AddressRange& second_out) const noexcept;
  // Removes and returns the range that begins at `base`, if `accept` approves it.
  std::optional<AddressRange> take(uint64_t base, const std::function<bool(const AddressRange&)>& accept);
  // Changes the range that holds `address`; its base and bytes must stay. Returns false if there is none.
  bool update(uint64_t address, const std::function<void(AddressRange&)>& change);
  // Changes each range that lies in [base, base + bytes); their bases and bytes must stay.
  void update_within(uint64_t base, uint64_t bytes, const std::function<void(AddressRange&)>& change);
  // Removes all ranges that `accept` approves, and passes each to `removed`.
  void take_all(const std::function<bool(const AddressRange&)>& accept,
                const std::function<void(const AddressRange&)>& removed);
  size_t size() const;
  // A child gets no addresses, but its look-ups must not block.
  void after_fork_in_child() noexcept { new (&mutex_) SharedMutex; }

 private:
  // Returns the range that holds `address`, or null.
  const AddressRange* holder(uint64_t address) const noexcept REQUIRES_SHARED(mutex_);
  // Returns the first range that ends behind `base`.
  std::map<uint64_t, AddressRange>::iterator first_overlap(uint64_t base) REQUIRES(mutex_);

  mutable SharedMutex mutex_;
  // The ranges by their first address.
  std::map<uint64_t, AddressRange> ranges_ GUARDED_BY(mutex_);
};

// From this many stretches of reserved pages on, the space between the stretches of one chunk is reserved, too: each
// stretch is one of the 65,530 mappings of a process (vm.max_map_count), of which the program needs some.
inline constexpr size_t kSingleStretchesMax = 4096;

// The pages of this process that device allocations occupy, kept inaccessible. Small allocations share pages, so uses
// of pages are counted. Any thread.
class AddressReservations {
 public:
  explicit AddressReservations(size_t single_stretches_max = kSingleStretchesMax)
      : single_stretches_max_(single_stretches_max) {}
  AddressReservations(const AddressReservations&) = delete;
  AddressReservations& operator=(const AddressReservations&) = delete;
  ~AddressReservations();

  // Reserves the pages of a range. Returns false, and reserves nothing, if the program has a mapping there.
  bool reserve(uint64_t base, uint64_t bytes);
  // Undoes one reserve() of the same arguments.
  void release(uint64_t base, uint64_t bytes);
  // Gives up pages in this range that are mapped but not reserved, because the client is about to map memory there.
  void make_room(uint64_t base, uint64_t bytes);
  // Returns the reserved bytes, each page counted once.
  uint64_t reserved_bytes() const;
  void after_fork_in_child() noexcept { new (&mutex_) Mutex; }

 private:
  struct Segment {
    uint64_t end = 0;
    uint32_t uses = 0;
  };
  using Stretches = std::vector<std::pair<uint64_t, uint64_t>>;
  void split(uint64_t address) REQUIRES(mutex_);
  // Returns the parts of [begin, end) that no segment covers.
  Stretches gaps(uint64_t begin, uint64_t end) REQUIRES(mutex_);
  // Claims the pages of a gap. `claimed` gets the new mappings, and `chunks` the chunks that are now reserved as a
  // whole.
  bool claim(uint64_t begin, uint64_t end, Stretches& claimed, std::vector<uint64_t>& chunks) REQUIRES(mutex_);
  bool hold_whole(uint64_t chunk, Stretches& claimed) REQUIRES(mutex_);
  // Unmaps pages that no segment covers any more, except those of a chunk that is reserved as a whole.
  void give_back(uint64_t begin, uint64_t end) REQUIRES(mutex_);
  bool is_used(uint64_t begin, uint64_t end) const REQUIRES(mutex_);

  mutable Mutex mutex_;
  // Disjoint, by first byte; page-aligned.
  std::map<uint64_t, Segment> segments_ GUARDED_BY(mutex_);
  // The chunks of which every page is mapped, whether a segment covers it or not.
  std::set<uint64_t> whole_ GUARDED_BY(mutex_);
  const size_t single_stretches_max_;
};

// The map of this process. It is never destroyed, because the program's threads may still run while the process exits.
AddressMap& address_map();
// The parts of reserved ranges that have memory: a range for each mapping.
AddressMap& mapped_parts();
// Returns the allocation or mapping that holds the address for the program; none where a reserved range has no memory.
std::optional<AddressRange> allocation_at(uint64_t address);
AddressReservations& address_reservations();

// Inserts a range into the process's map; ranges that it replaces also lose their reservation.
void publish_range(const AddressRange& range);
// Ends the reservation of a range that was taken out of the map, if it has one.
void release_range(const AddressRange& range);

}  // namespace gpuwire::client
