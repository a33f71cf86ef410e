// The proof by which a client shows, over a new connection, that a session is its own.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "protocol/wire/limits.hpp"

namespace gpuwire::resume {

using SessionId = std::array<uint8_t, 16>;
using Secret = std::array<uint8_t, wire::kResumeSecretBytes>;        // the worker's random bytes, sent in Welcome
using Challenge = std::array<uint8_t, wire::kResumeChallengeBytes>;  // random for each connection
using Proof = std::array<uint8_t, wire::kResumeProofBytes>;

// The lane of a session that a connection is to become.
struct Lane {
  uint32_t set = 0;
  uint8_t number = 0, count = 0;
};

// Returns HMAC-SHA256 with the secret. `binding`: bytes that only the two ends of this connection can compute
// (Transport::binding()), or nothing. A proof for one connection is invalid for another.
Proof proof_of(const Secret& secret, const Challenge& challenge, std::string_view binding, const SessionId& session,
               uint64_t attempt);
// Returns the proof for a connection that is to be a lane. It is never valid as a session's proof, nor the reverse.
Proof lane_proof_of(const Secret& secret, const Challenge& challenge, std::string_view binding,
                    const SessionId& session, uint64_t attempt, const Lane& lane);
// Compares in constant time.
bool same(const Proof& one, const Proof& other);

}  // namespace gpuwire::resume
