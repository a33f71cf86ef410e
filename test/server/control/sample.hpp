// A snapshot of a busy server, and the same server two seconds later.
#pragma once

#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

inline Snapshot sample_snapshot() {
  Snapshot s;
  s.taken_ns = 10'000'000'000;
  s.taken_unix_s = 1'700'000'000.5;
  s.server = {.release = "1.2.3",
              .pid = 4242,
              .started_unix_s = 1'699'992'800,
              .devices = "2 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0",
              .listen = {"0.0.0.0:9750", "unix:/run/gpuwire/server"},
              .sessions_max = 64,
              .certificates = {{.of = "server", .tenant = "", .expires_unix_s = 1'790'000'000, .warning = ""}}};
  s.devices = {{.index = 0,
                .name = "NVIDIA H200",
                .memory_bytes = 150'000'000'000,
                .memory_used_bytes = 50ull << 30,
                .prewarmed_workers = 3,
                .prewarmed_memory_bytes = 3ull << 29,
                .sessions = 2,
                .regime = "lease",
                .regime_ns = {{"free", 6'000'000'000}, {"lease", 4'000'000'000}},
                .gpu_time_ns = 9'000'000'000,
                .system_time_ns = 100'000'000,
                .hand_overs = 120,
                .side_by_side = {.trials = 3, .turns = 0.99, .together = 1.57, .expected = 1.5},
                .drain_us = {{"batch", {{100, 250, 1000}, {7, 3, 1, 0}, 1500}}}},
               {.index = 1, .name = "NVIDIA H200", .memory_bytes = 150'000'000'000, .regime = "free"}};
  s.tenants = {{.name = "alice",
                .service_class = "interactive",
                .weight = 2,
                .sessions_max = 4,
                .sessions = {{"running", 1}},
                .devices = {{.device = 0,
                             .gpu_time_ns = 6'000'000'000,
                             .memory_used_bytes = 20ull << 30,
                             .memory_limit_bytes = 40ull << 30,
                             .memory_guaranteed_bytes = 10ull << 30,
                             .memory_allowance_bytes = 24ull << 30}},
                .host_memory_used_bytes = 1ull << 30,
                .host_memory_limit_bytes = 4ull << 30,
                .chunk_memory_bytes = 11ull << 20,
                .chunk_memory_limit_bytes = 12ull << 20,
                .chunk_disk_bytes = 13ull << 20,
                .chunk_disk_limit_bytes = 14ull << 20,
                .chunks_found = 15,
                .chunk_bytes_found = 16ull << 20,
                .chunk_bytes_kept = 17ull << 20,
                .bytes_in = 5'000'000,
                .bytes_out = 70'000'000,
                .replies = 900,
                .begun = 3,
                .worker_waits = 2,
                .ended = {{"finished", 2}},
                .refused = {{"never_fits", 1}},
                .queue_wait_s = {{0.1, 1, 10}, {2, 1, 0, 0}, 0.7}},
               {.name = "bob",
                .service_class = "batch",
                .weight = 1,
                .sessions = {{"queued", 1}, {"running", 1}},
                .devices = {{.device = 0, .gpu_time_ns = 3'000'000'000, .memory_used_bytes = 30ull << 30}},
                .bytes_in = 1000,
                .bytes_out = 2000,
                .begun = 1}};
  s.sessions = {{.id = 3,
                 .tenant = "alice",
                 .service_class = "interactive",
                 .state = "running",
                 .peer = "10.0.0.7:4711",
                 .program = "python",
                 .host = "laptop",
                 .security = "tls certificate",
                 .credential = "0a1b",
                 .client_pid = 99,
                 .worker_pid = 5001,
                 .since_unix_s = 1'699'999'000,
                 .devices = {{0, 20ull << 30, 22ull << 30}},
                 .memory_limit_bytes = 40ull << 30,
                 .gpu_time_ns = 6'000'000'000,
                 .gate_open = true,
                 .holds_lease = true,
                 .in_flight_ns = 450'000,
                 .gate_waits = 12,
                 .gate_wait_ns = 100'000'000,
                 .bytes_in = 4'000'000,
                 .bytes_out = 60'000'000,
                 .replies = 800,
                 .round_trip_us = 210},
                {.id = 4,
                 .tenant = "bob",
                 .service_class = "batch",
                 .state = "running",
                 .peer = "10.0.0.8:4712",
                 .program = "train\x1b[2J",
                 .host = "node\n8",
                 .security = "token",
                 .client_pid = 7,
                 .worker_pid = 5002,
                 .since_unix_s = 1'699'999'940,
                 .devices = {{0, 30ull << 30}},
                 .gpu_time_ns = 3'000'000'000,
                 .gate_open = false,
                 .held = "class",
                 .held_by = 3,
                 .gate_waits = 400,
                 .gate_wait_ns = 5'000'000'000,
                 .bytes_in = 1000,
                 .bytes_out = 2000,
                 .replies = 5,
                 .warning = "a kernel runs for 70 s"},
                {.id = 6,
                 .tenant = "bob",
                 .service_class = "batch",
                 .state = "queued",
                 .peer = "10.0.0.8:4713",
                 .program = "eval",
                 .host = "node8",
                 .security = "token",
                 .client_pid = 8,
                 .since_unix_s = 1'699'999'990,
                 .place = 1,
                 .waits_for = "20.0 GiB on 1 GPU"}};
  s.refused = {{"token", 4}};
  return s;
}

inline Snapshot sample_later() {
  Snapshot s = sample_snapshot();
  s.taken_ns += 2'000'000'000;
  s.taken_unix_s += 2;
  s.devices[0].gpu_time_ns += 1'900'000'000;
  s.devices[0].system_time_ns += 20'000'000;
  s.tenants[0].devices[0].gpu_time_ns += 1'300'000'000;
  s.tenants[1].devices[0].gpu_time_ns += 600'000'000;
  s.sessions[0].gpu_time_ns += 1'300'000'000;
  s.sessions[0].bytes_in += 20'000'000;
  s.sessions[0].bytes_out += 2'000;
  s.sessions[0].replies += 1000;
  s.sessions[0].gate_wait_ns += 500'000'000;
  s.sessions[1].gpu_time_ns += 600'000'000;
  return s;
}

}  // namespace gpuwire::server
