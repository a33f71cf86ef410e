#include "client_stub/account/account_text.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <vector>

namespace gpuwire::client {

namespace {

std::string bytes_text(uint64_t bytes) {
  char out[32];
  if (bytes >= 10u << 20) {
    std::snprintf(out, sizeof out, "%.1f MiB", double(bytes) / (1 << 20));
  } else if (bytes >= 10u << 10) {
    std::snprintf(out, sizeof out, "%.1f KiB", double(bytes) / 1024);
  } else {
    std::snprintf(out, sizeof out, "%" PRIu64 " bytes", bytes);
  }
  return out;
}

double ms(uint64_t ns) { return double(ns) / 1e6; }

template <class... Values>
void line(std::string& text, const char* format, Values... values) {
  char out[512];
  std::snprintf(out, sizeof out, format, values...);
  text.append("gpuwire: ").append(out).append("\n");
}

// A text may fill its field without a final zero.
template <size_t kBytes>
std::string text_in(const char (&field)[kBytes]) {
  return std::string(text_of(field, kBytes));
}

// Threads of the program may still count while it prints.
uint64_t value(const uint64_t& counter) {
  return std::atomic_ref(const_cast<uint64_t&>(counter)).load(std::memory_order_relaxed);
}

// The costs of functions of one name, added up.
struct Row {
  std::string_view name;
  uint64_t calls = 0, waits = 0, wait_ns = 0, ns = 0, sent = 0, received = 0, stalls = 0, pageable_waits = 0;
};

std::vector<Row> rows(const AccountPage& page) {
  std::vector<Row> out;
  for (const FunctionCosts& costs : page.functions) {
    if (!std::atomic_ref(const_cast<uint64_t&>(costs.named)).load(std::memory_order_acquire)) continue;
    const std::string_view name = text_of(costs.name, sizeof costs.name);
    auto row = std::find_if(out.begin(), out.end(), [&](const Row& other) { return other.name == name; });
    if (row == out.end()) row = out.insert(out.end(), Row{.name = name});
    row->calls += value(costs.calls);
    row->waits += value(costs.waits);
    row->wait_ns += value(costs.wait_ns);
    row->ns += value(costs.ns);
    row->sent += value(costs.sent);
    row->received += value(costs.received);
    row->stalls += value(costs.stalls);
    row->pageable_waits += value(costs.pageable_waits);
  }
  return out;
}

void table(std::string& text, const AccountPage& page) {
  std::vector<Row> all = rows(page);
  Row rest{.name = "(not in a call)"};  // the handshake, callbacks, exit
  rest.waits = value(page.session.waits);
  rest.wait_ns = value(page.session.wait_ns);
  for (const Row& row : all) {
    rest.waits -= std::min(rest.waits, row.waits);
    rest.wait_ns -= std::min(rest.wait_ns, row.wait_ns);
  }
  if (rest.waits) all.push_back(rest);
  std::sort(all.begin(), all.end(),
            [](const Row& a, const Row& b) { return a.waits != b.waits ? a.waits > b.waits : a.ns > b.ns; });
  line(text, "%-48s %9s %7s %10s %10s %12s %12s", "function", "calls", "waits", "ms waited", "ms in all", "sent",
       "received");
  for (const Row& row : all) {
    line(text, "%-48.*s %9" PRIu64 " %7" PRIu64 " %10.2f %10.2f %12s %12s", int(row.name.size()), row.name.data(),
         row.calls, row.waits, ms(row.wait_ns), ms(row.ns), bytes_text(row.sent).c_str(),
         bytes_text(row.received).c_str());
  }
}

void summary(std::string& text, const AccountPage& page, const AccountEnd& end) {
  const SessionCounts& session = page.session;
  for (size_t i = 0; i < std::min<size_t>(page.device_count, kAccountDevicesMax); ++i)
    line(text, "device %zu: %s", i, text_in(page.devices[i]).c_str());
  line(text, "server: %s", text_in(page.server).c_str());
  line(text, "calls: %" PRIu64 " local, %" PRIu64 " posted, %" PRIu64 " called", value(page.by_class[0]),
       value(page.by_class[1]), value(page.by_class[2]));
  line(text, "sent %s in %" PRIu64 " writes, received %s", bytes_text(value(session.bytes_sent)).c_str(),
       value(session.flushes), bytes_text(value(session.bytes_received)).c_str());
  if (value(session.lane_bytes))
    line(text, "lanes: %" PRIu64 " further connections for bulk, of which the last used %" PRIu64 ", %s over them",
         value(session.lanes_opened), value(session.lanes_in_use), bytes_text(value(session.lane_bytes)).c_str());
  if (value(session.losses))
    line(text, "connections lost: %" PRIu64 ", %.2f ms without one, %s sent again", value(session.losses),
         ms(value(session.detached_ns)), bytes_text(value(session.bytes_sent_again)).c_str());
  if (value(session.chunk_bytes_asked))
    line(text, "chunks: %s of copies to the device were asked for, %s were at the server already",
         bytes_text(value(session.chunk_bytes_asked)).c_str(), bytes_text(value(session.chunk_bytes_found)).c_str());
  if (value(session.staged_to_device) || value(session.staged_from_device))
    line(text, "shared staging: %s to the device, %s from it, beside the connection",
         bytes_text(value(session.staged_to_device)).c_str(), bytes_text(value(session.staged_from_device)).c_str());
  line(text, "images: %" PRIu64 " used, %" PRIu64 " sent (%s)", value(session.images_used), value(session.images_sent),
       bytes_text(value(session.image_bytes_sent)).c_str());
  line(text, "waits: %" PRIu64 ", %.2f ms; elapsed %.1f ms", value(session.waits), ms(value(session.wait_ns)),
       ms(end.elapsed_ns));
}

void why(std::string& text, const AccountPage& page, const AccountEnd& end) {
  const SessionCounts& session = page.session;
  const std::string program = text_in(page.program);
  RunFigures figures{.program = program,
                     .process_id = long(page.process_id),
                     .elapsed_ns = end.elapsed_ns,
                     .waits = value(session.waits),
                     .wait_ns = value(session.wait_ns),
                     .sent = value(session.bytes_sent),
                     .received = value(session.bytes_received),
                     .round_trip_ns = end.round_trip_ns,
                     .server = end.server,
                     .calls = {}};
  for (const Row& row : rows(page))
    figures.calls.push_back(
        {row.name, row.waits, row.stalls, row.pageable_waits, row.wait_ns, row.ns, row.sent + row.received});
  for (const std::string& told : explain_run(figures)) line(text, "%s", told.c_str());
}

}  // namespace

std::string account_text(const AccountPage& page, const AccountEnd& end) {
  std::string text;
  const std::string program = text_in(page.program);
  const long process = long(page.process_id);
  if (end.cut_short)
    line(text, "%s, process %ld, ended by a signal or by _exit: this is what was counted up to its last CUDA call",
         program.c_str(), process);
  if (page.depth == AccountDepth::why) {
    why(text, page, end);
    return text;
  }
  // Several processes of a program may write to one terminal, so each account names its process.
  line(text, "account of %s, process %ld", program.c_str(), process);
  summary(text, page, end);
  if (page.depth == AccountDepth::calls) table(text, page);
  return text;
}

}  // namespace gpuwire::client
