// take(), by which every driver call takes memory: it reserves an upper bound before the call, and corrects the charge
// to the memory really taken afterwards.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

// Reserved bytes; the destructor releases them, unless keep() was called.
class Reservation {
 public:
  Reservation(SessionLedger& ledger, uint32_t column, uint64_t bytes)
      : ledger_(ledger), column_(column), bytes_(bytes), made_(ledger.reserve(column, bytes)) {}
  ~Reservation() {
    if (made_) ledger_.give_back(column_, bytes_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  explicit operator bool() const { return made_; }
  uint32_t column() const { return column_; }
  uint64_t bytes() const { return made_ ? bytes_ : 0; }
  // Passes `bytes` of the reservation to the caller, which has to release them later; the rest is released at once.
  void keep(uint64_t bytes) {
    if (!made_) return;
    if (bytes < bytes_) ledger_.give_back(column_, bytes_ - bytes);
    made_ = false;
  }

 private:
  SessionLedger& ledger_;
  const uint32_t column_;
  const uint64_t bytes_;
  bool made_;
};

// Makes a call that takes memory. `most`: an upper bound of its memory, reserved before; without room for it the call
// is not made. After a successful call `taken()` returns the memory that it took, and `keep(bytes)` records it for a
// later release. If the call took more than the bound, the rest is reserved, or else `undo()` frees the memory: for the
// time of two calls the device has more than the charge.
template <class Call, class Taken, class Keep, class Undo>
CUresult take(SessionLedger& ledger, uint32_t column, uint64_t most, Call&& call, Taken&& taken, Keep&& keep,
              Undo&& undo) {
  Reservation reservation(ledger, column, most);
  if (!reservation) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult error = call()) return error;
  const uint64_t bytes = taken();
  Reservation beyond(ledger, column, bytes - std::min(bytes, most));
  if (!beyond) {
    undo();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reservation.keep(bytes);
  beyond.keep(beyond.bytes());
  keep(bytes);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::server
