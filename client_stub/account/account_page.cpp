#include "client_stub/account/account_page.hpp"

#include <algorithm>
#include <cstring>

namespace gpuwire::client {

AccountDepth account_depth(const char* value) noexcept {
  std::string_view text = value ? value : "";
  if (text.empty() || text[0] == '0') return AccountDepth::none;
  if (text == "why") return AccountDepth::why;
  return text == "calls" ? AccountDepth::calls : AccountDepth::summary;
}

FunctionCosts* costs_of(AccountPage& page, const char* name) noexcept {
  const uint64_t key = reinterpret_cast<uintptr_t>(name);
  size_t at = (key * 0x9E3779B97F4A7C15u) >> 53;
  static_assert(kFunctionsMax == size_t{1} << (64 - 53));
  for (size_t tried = 0; tried < kFunctionsMax; ++tried, at = (at + 1) % kFunctionsMax) {
    FunctionCosts& costs = page.functions[at];
    std::atomic_ref owner(costs.key);
    uint64_t there = owner.load(std::memory_order_relaxed);
    if (there == 0 && owner.compare_exchange_strong(there, key, std::memory_order_relaxed)) {
      put_text(costs.name, sizeof costs.name, name);
      std::atomic_ref(costs.named).store(1, std::memory_order_release);
      return &costs;
    }
    if (there == key) return &costs;
  }
  return nullptr;
}

void put_text(char* text, size_t bytes, std::string_view value) noexcept {
  const size_t length = std::min(bytes - 1, value.size());
  std::memcpy(text, value.data(), length);
  text[length] = 0;
}

std::string_view text_of(const char* text, size_t bytes) noexcept { return {text, strnlen(text, bytes)}; }

}  // namespace gpuwire::client
