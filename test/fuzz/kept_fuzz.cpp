// The input is an entry that a broker gets from its keeper: a session, a share, the devices, totals; or an entry's
// name. A valid entry can be written again, and is read as the same.
#include <cstdlib>
#include <string>

#include "server/broker/keeper/kept_session.hpp"
#include "server/control/kept_totals.hpp"
#include "test/fuzz/frame_fuzz.hpp"

using namespace gpuwire::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (auto session = decode_kept_session(text)) {
    auto again = decode_kept_session(encode(*session));
    if (!again || encode(*again) != encode(*session)) std::abort();
  }
  if (auto share = decode_kept_share(text)) {
    auto again = decode_kept_share(encode(*share));
    if (!again || again->session != share->session || again->kind != share->kind || again->user != share->user)
      std::abort();
  }
  if (auto inventory = decode_kept_inventory(text)) {
    auto again = decode_kept_inventory(encode_kept_inventory(*inventory));
    if (!again || encode_kept_inventory(*again) != encode_kept_inventory(*inventory)) std::abort();
  }
  if (auto token = token_of(text); token && token_of(kept_name(*token)) != token) std::abort();
  if (is_place(text) && is_total(text)) std::abort();
  Snapshot totals;
  static_cast<void>(add_total(text, totals));
  return 0;
}
