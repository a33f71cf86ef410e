// The input is a register of credentials (register.json), or one field of it. A valid register can be written again,
// and is read as the same.
#include <cstdlib>
#include <string>

#include "server/identity/register.hpp"
#include "test/fuzz/frame_fuzz.hpp"

using namespace gpuwire::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (auto time = time_from_text(text); time && time_from_text(to_text(*time)) != time) std::abort();
  static_cast<void>(is_job_name(text));
  auto read = Register::parse(text);
  if (!read) {
    if (read.error().empty()) std::abort();
    return 0;
  }
  auto again = Register::parse(read->text());
  if (!again || again->text() != read->text()) std::abort();
  for (const Credential& one : read->credentials()) {
    if (!read->find(one.kind, one.id) || !read->knows(one.id)) std::abort();
    static_cast<void>(why_invalid(one, one.issued));
  }
  const WallTime now{};
  if (!read->credentials().empty()) {
    const std::string tenant = read->credentials()[0].tenant;
    read->revoke(tenant, true, now);
    for (const Credential& one : read->credentials())
      if (one.tenant == tenant && one.expires > now && !one.revoked) std::abort();
  }
  read->forget_jobs(now);
  if (!Register::parse(read->text())) std::abort();
  static_cast<void>(read->find_token(text));
  return 0;
}
