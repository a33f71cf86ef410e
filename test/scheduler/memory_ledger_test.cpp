// The ledger of memory against a model: tenants that take and give back at random, from a seed.
#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include <doctest/doctest.h>

#include "scheduler/memory_ledger.hpp"

namespace gpuwire::scheduler {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kDeviceBytes = 4096 * kMiB;
constexpr unsigned kScenarios = 10000, kSteps = 150;

// One device, and what a broker does with the ledger: raise, and when that fails take back what others do not use and
// raise again.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed), ledger_({kDeviceBytes}) {}

  void run() {
    unsigned tenants = pick(1, 6);
    for (unsigned i = 0; i < tenants; ++i) set_share(TenantId(i));
    for (unsigned step = 0; step < kSteps; ++step) {
      if (pick(0, 9) == 0) take_optional();
      auto tenant = TenantId(pick(0, tenants - 1));
      if (!used_.contains(tenant)) set_share(tenant);
      else act(tenant);
      check();
    }
    for (auto& [tenant, used] : used_) used = 0;
    for (auto& [tenant, used] : used_) take_back(tenant);
    uint64_t allowed = 0, guaranteed = 0;
    for (auto& [tenant, used] : used_) {
      allowed += ledger_.allowance(tenant, 0);
      guaranteed += ledger_.share(tenant, 0).guaranteed_bytes;
    }
    CHECK(allowed <= guaranteed);
  }

 private:
  unsigned pick(unsigned least, unsigned most) { return std::uniform_int_distribution<unsigned>(least, most)(random_); }
  uint64_t some_bytes(uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(1, most)(random_) >> pick(0, 12);
  }

  void act(TenantId tenant) {
    uint64_t& used = used_[tenant];
    switch (pick(0, 19)) {
      case 0: set_share(tenant); break;
      case 1:
        ledger_.remove_tenant(tenant);
        used_.erase(tenant);
        indebted_ = still_indebted();
        break;
      case 2: take_back(tenant); break;
      case 3:
      case 4:
      case 5:
      case 6:
      case 7: used -= std::min(used, some_bytes(kDeviceBytes)); break;
      default: take(tenant, std::max<uint64_t>(1, some_bytes(kDeviceBytes / 2)));
    }
  }

  // The server takes of what is nobody's, or lets go.
  void take_optional() {
    const uint64_t most = ledger_.optional_max(0);
    ledger_.set_optional(0, most && pick(0, 2) ? std::min(most, some_bytes(kDeviceBytes)) : 0);
  }

  // What the server can do without goes when a tenant wants it: just so much that it has what it wants.
  std::optional<uint64_t> after_optional(TenantId tenant, uint64_t used, uint64_t bytes) {
    auto lacking = ledger_.lacking(tenant, 0, used, bytes);
    if (!lacking) return std::nullopt;
    const uint64_t has = ledger_.optional_bytes(0);
    REQUIRE(*lacking > 0);
    REQUIRE(*lacking <= has);
    ledger_.set_optional(0, has - *lacking + 1);
    REQUIRE_FALSE(ledger_.raise(tenant, 0, used, bytes));
    ledger_.set_optional(0, has - *lacking);
    auto allowance = ledger_.raise(tenant, 0, used, bytes);
    REQUIRE(allowance);
    return allowance;
  }

  void set_share(TenantId tenant) {
    MemoryShare share{.guaranteed_bytes = pick(0, 2) ? pick(0, 1500) * kMiB : 0};
    share.limit_bytes = pick(0, 3) ? share.guaranteed_bytes + pick(0, 3000) * kMiB : UINT64_MAX;
    MemoryShare before = ledger_.share(tenant, 0);
    bool known = used_.contains(tenant);
    if (ledger_.set_tenant(tenant, 0, share)) {
      CHECK((!known || ledger_.share(tenant, 0) == before));
      CHECK(guarantees_without(tenant) + share.guaranteed_bytes > kDeviceBytes);
      return;
    }
    used_.try_emplace(tenant, 0);
    take_back(tenant);  // a limit that has shrunk
  }

  uint64_t guarantees_without(TenantId tenant) {
    uint64_t sum = 0;
    for (auto& [other, used] : used_) {
      if (other != tenant) sum += ledger_.share(other, 0).guaranteed_bytes;
    }
    return sum;
  }

  // A guarantee was set while its memory was lent.
  bool still_indebted() {
    uint64_t claims = 0;
    for (auto& [tenant, used] : used_)
      claims += std::max(ledger_.allowance(tenant, 0), ledger_.share(tenant, 0).guaranteed_bytes);
    return claims + ledger_.optional_bytes(0) > kDeviceBytes;
  }

  void take_back(TenantId tenant) {
    uint64_t target = ledger_.lower_target(tenant, 0, used_[tenant]);
    REQUIRE(target >= std::min(used_[tenant], ledger_.allowance(tenant, 0)));
    ledger_.lowered(tenant, 0, target);
    indebted_ = still_indebted();
  }

  void take(TenantId tenant, uint64_t bytes) {
    uint64_t& used = used_[tenant];
    MemoryShare share = ledger_.share(tenant, 0);
    if (ledger_.allowance(tenant, 0) > share.limit_bytes) take_back(tenant);
    bool could = ledger_.available(tenant, 0, used) >= bytes;
    auto allowance = ledger_.raise(tenant, 0, used, bytes);
    CHECK(allowance.has_value() == could);
    if (!allowance) {
      for (auto& [other, other_used] : used_) {
        if (other != tenant) take_back(other);
      }
      allowance = ledger_.raise(tenant, 0, used, bytes);
    }
    if (allowance) CHECK_FALSE(ledger_.lacking(tenant, 0, used, bytes));
    else allowance = after_optional(tenant, used, bytes);
    uint64_t claims = 0;
    for (auto& [other, other_used] : used_) {
      if (other != tenant) claims += std::max(other_used, ledger_.share(other, 0).guaranteed_bytes);
    }
    if (allowance) {
      CHECK(*allowance >= used + bytes);
      CHECK(*allowance <= share.limit_bytes);
      CHECK(*allowance == ledger_.allowance(tenant, 0));
      used += bytes;
      return;
    }
    // Refused, and rightly so: over its limit, or others hold or are guaranteed the memory.
    bool over_limit = used + bytes > share.limit_bytes;
    bool taken = used + bytes + claims > kDeviceBytes;
    CHECK((over_limit || taken));
    // Within a guarantee only what was lent before it was set may be in the way.
    bool within = used + bytes <= share.guaranteed_bytes;
    CHECK((!within || indebted_));
  }

  void check() {
    REQUIRE(ledger_.check() == "");
    for (auto& [tenant, used] : used_) CHECK(used <= ledger_.allowance(tenant, 0));
    if (!indebted_) CHECK(!still_indebted());
  }

  std::mt19937_64 random_;
  MemoryLedger ledger_;
  std::map<TenantId, uint64_t> used_;
  bool indebted_ = false;
};

TEST_CASE("allowances never exceed a device, guarantees hold, and nothing is refused that fits") {
  for (uint64_t seed = 1; seed <= kScenarios; ++seed) {
    CAPTURE(seed);
    Model(seed).run();
  }
}

TEST_CASE("a tenant's guarantee waits for nobody, whatever others have borrowed before") {
  MemoryLedger ledger({1000 * kMiB});
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.guaranteed_bytes = 400 * kMiB}));
  REQUIRE(!ledger.set_tenant(TenantId(2), 0, {}));
  CHECK(ledger.raise(TenantId(2), 0, 0, 601 * kMiB) == std::nullopt);
  CHECK(ledger.raise(TenantId(2), 0, 0, 600 * kMiB) == 600 * kMiB);
  CHECK(ledger.raise(TenantId(1), 0, 0, 400 * kMiB) == 400 * kMiB);
  CHECK(ledger.raise(TenantId(1), 0, 400 * kMiB, 1) == std::nullopt);
}

TEST_CASE("an allowance grows by slabs while there is room, and by what is wanted where there is not") {
  MemoryLedger ledger({1000 * kMiB});
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.limit_bytes = 100 * kMiB}));
  CHECK(ledger.raise(TenantId(1), 0, 0, 1) == 64 * kMiB);
  CHECK(ledger.raise(TenantId(1), 0, 64 * kMiB, 1) == 100 * kMiB);
  CHECK(ledger.raise(TenantId(1), 0, 100 * kMiB, 1) == std::nullopt);
  CHECK(ledger.raise(TenantId(1), 0, UINT64_MAX, UINT64_MAX) == std::nullopt);
}

TEST_CASE(
    "what the server can do without is given to nobody before it has gone, and takes nothing that is guaranteed") {
  MemoryLedger ledger({1000});
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.guaranteed_bytes = 300}));
  REQUIRE(!ledger.set_tenant(TenantId(2), 0, {}));
  CHECK(ledger.optional_max(0) == 700);
  REQUIRE(ledger.raise(TenantId(2), 0, 0, 100) == 700);  // a slab is more than there is
  CHECK(ledger.optional_max(0) == 0);
  ledger.lowered(TenantId(2), 0, 100);
  CHECK(ledger.optional_max(0) == 600);
  ledger.set_optional(0, 600);
  CHECK(ledger.available(TenantId(2), 0, 100) == 0);
  CHECK_FALSE(ledger.raise(TenantId(2), 0, 100, 200));
  CHECK(ledger.lacking(TenantId(2), 0, 100, 200) == 200);
  CHECK_FALSE(ledger.lacking(TenantId(2), 0, 100, 601));  // the first one's guarantee is not in question
  CHECK_FALSE(ledger.lacking(TenantId(1), 0, 0, 300));
  CHECK(ledger.raise(TenantId(1), 0, 0, 300) == 300);
  ledger.set_optional(0, 400);
  CHECK(ledger.raise(TenantId(2), 0, 100, 200) == 300);
  // A guarantee that grows into it has to wait, and says for how much.
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.guaranteed_bytes = 500}));
  CHECK(ledger.optional_max(0) == 200);
  CHECK(ledger.allowance(TenantId(1), 0) == 300);
  CHECK(ledger.lacking(TenantId(1), 0, 0, 450) == 150);
}

TEST_CASE("shares that cannot be are refused, and change nothing") {
  MemoryLedger ledger({1000 * kMiB});
  CHECK(ledger.set_tenant(TenantId(1), 0, {.guaranteed_bytes = 2, .limit_bytes = 1}));
  CHECK(ledger.set_tenant(TenantId(1), 1, {}));
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.guaranteed_bytes = 600 * kMiB}));
  CHECK(ledger.set_tenant(TenantId(2), 0, {.guaranteed_bytes = 401 * kMiB}));
  CHECK(ledger.share(TenantId(2), 0) == MemoryShare{0, 0});
  CHECK(ledger.raise(TenantId(2), 0, 0, 1) == std::nullopt);
}

TEST_CASE("a limit that shrinks below what is held takes nothing away, and gives no more") {
  MemoryLedger ledger({1000 * kMiB});
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {}));
  REQUIRE(ledger.raise(TenantId(1), 0, 0, 500 * kMiB));
  REQUIRE(!ledger.set_tenant(TenantId(1), 0, {.limit_bytes = 200 * kMiB}));
  CHECK(ledger.raise(TenantId(1), 0, 500 * kMiB, 1) == std::nullopt);
  CHECK(ledger.lower_target(TenantId(1), 0, 500 * kMiB) == 500 * kMiB);
  ledger.lowered(TenantId(1), 0, ledger.lower_target(TenantId(1), 0, 150 * kMiB));
  CHECK(ledger.raise(TenantId(1), 0, 150 * kMiB, 50 * kMiB) == 200 * kMiB);
}

}  // namespace
}  // namespace gpuwire::scheduler
