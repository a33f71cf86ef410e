// Transfers bytes between the program's memory and the device, in pieces that follow each other closely: all are sent
// before the first wait.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

inline constexpr size_t kPieceBytes = 16u << 20;
inline constexpr size_t kPiecesInFlightMax = 32;  // of one copy
// A copy whose source is copied before its call returns is sent as soon as this many bytes have been copied.
inline constexpr size_t kKeptPieceBytes = 1u << 20;
// A longer copy is not cached on one machine: the server has all bytes as soon as the client could have copied them.
inline constexpr size_t kKeptNearBytesMax = 1u << 20;

// The state of the source of a copy to the device after the call.
enum class Source : uint8_t {
  free,     // the program may change it
  arrived,  // the program may change it, and may assume that the device has the data (the forms without a stream
            // argument)
  stays,    // pinned; the program does not change it until the copy is done
};

// Host to device. Returns when the source has been copied (Session::keep()) or sent. Waits if the source is too large
// to be copied, or if `after` requires it and the program could notice (posted_uploads.hpp). `writes_host`: the
// destination may be memory of the program that the device reaches.
CUresult send_to_device(const Caller& caller, CUdeviceptr destination, const void* source, size_t bytes,
                        uint64_t stream, Source after, bool writes_host = true);
// Device to host. Returns when the data are in memory.
CUresult fetch_from_device(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream);
// Device to pinned host memory. Returns at once; the data are in memory when the stream has been synchronised.
CUresult fetch_later(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream);

// A box of rows, on the device or in an array.
struct DeviceBox {
  // Or `array`.
  CUdeviceptr device = 0;
  // Wire handle.
  uint64_t array = 0;
  uint64_t pitch_bytes = 0;
  // Rows between two slices.
  uint64_t height_rows = 0;
  uint64_t x_bytes = 0, y = 0, z = 0;
  uint32_t lod = 0;
};
// As above, in the program's memory; `base` is the address where x, y and z are zero.
struct HostBox {
  std::byte* base = nullptr;
  uint64_t pitch_bytes = 0;
  uint64_t height_rows = 0;
  uint64_t x_bytes = 0, y = 0, z = 0;

  std::byte* row(uint64_t row, uint64_t slice) const noexcept {
    return base + ((z + slice) * height_rows + y + row) * pitch_bytes + x_bytes;
  }
};
struct BoxSize {
  uint64_t width_bytes = 0, height = 1, depth = 1;

  uint64_t rows() const noexcept { return height * depth; }
  uint64_t bytes() const noexcept { return width_bytes * rows(); }
};

CUresult send_box(const Caller& caller, const DeviceBox& destination, const HostBox& source, const BoxSize& size,
                  uint64_t stream, bool arrived);
CUresult fetch_box(const Caller& caller, const HostBox& destination, const DeviceBox& source, const BoxSize& size,
                   uint64_t stream);

// As above, to pinned host memory. Returns at once; the data are in memory when the stream has been synchronised.
CUresult fetch_box_later(const Caller& caller, const HostBox& destination, const DeviceBox& source, const BoxSize& size,
                         uint64_t stream);

// The part of a box in one frame: whole slices, rows of one slice, or part of one row.
struct BoxPiece {
  uint64_t slice = 0, row = 0, x_bytes = 0;
  BoxSize size;
};
// Visits the pieces of at most `piece_bytes_max` bytes in order, until `visit` returns an error.
CUresult for_each_piece(const BoxSize& size, uint64_t piece_bytes_max,
                        const std::function<CUresult(const BoxPiece&)>& visit);

// Copies between the packed bytes of a piece (from `offset` on) and their rows.
void gather_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<std::byte> out) noexcept;
void scatter_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<const std::byte> in) noexcept;

}  // namespace gpuwire::client
