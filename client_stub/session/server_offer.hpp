// A server's answer to the query whether a program would start there now (`check`, docs/wire_protocol.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {

inline constexpr size_t kOfferedGpusMax = 64;  // further GPUs of an answer are ignored
inline constexpr size_t kOfferLinesMax = 256;  // of an answer; a longer answer is invalid

struct OfferedGpu {
  std::string name;
  uint64_t free_bytes = 0, total_bytes = 0;
  // Begun sessions on the GPU.
  uint64_t sessions = 0;
  // The busy part of the recent time.
  unsigned busy_permille = 0;
};

struct ServerOffer {
  enum class Start : uint8_t {
    now,
    queued,   // it would wait
    no,       // the server refuses it, or cannot be asked
    unknown,  // the server gives no answer: its release is older, or the tenant asks too often
  };
  Start start = Start::unknown;
  // With `no`: no server accepts connections there.
  bool absent = false;
  // With `queued`; the place counts from 1.
  uint64_t place = 0, waiting = 0;
  // With `queued`: the server's estimate of the time until the start.
  std::optional<uint64_t> after_s;
  // With `queued` and `no`; one line without effects on a terminal.
  std::string why;
  // The GPUs that the tenant may use.
  std::vector<OfferedGpu> gpus;
};

// Returns nothing if the bytes are no such answer.
std::optional<ServerOffer> parse_offer(std::string_view answer);

}  // namespace gpuwire::client
