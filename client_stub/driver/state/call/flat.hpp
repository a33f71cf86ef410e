// Serialises a structure and the lists behind its pointers: the structure, then each list at the next multiple of 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "protocol/api/values.hpp"
#include "protocol/wire/handle.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

inline CUresult stream_to_wire(const Caller& caller, CUstream& stream, bool per_thread) noexcept {
  CUresult error = CUDA_SUCCESS;
  uint64_t handle = resolve_stream(caller, stream, per_thread, error);
  stream = from_word<CUstream>(handle);
  return error;
}

inline CUresult device_to_wire(CUdevice& device) noexcept {
  CUresult error = CUDA_SUCCESS;
  device = server_device(device, error);
  return error;
}

// Returns the program's number of a server's device; -1: the program does not see it.
inline CUdevice program_device(int32_t server) noexcept {
  for (CUdevice device = 0;; ++device) {
    CUresult error = CUDA_SUCCESS;
    int32_t found = server_device(device, error);
    if (error) return -1;
    if (found == server) return device;
  }
}

// Converts a handle in a structure. A null handle is invalid there, unlike in a call's own argument (as measured on
// driver 580).
inline CUresult check_handle(wire::HandleKind kind, uint64_t handle, bool optional) noexcept {
  if ((optional && !handle) || known_handle(kind, handle)) return CUDA_SUCCESS;
  const bool array = kind == wire::HandleKind::array || kind == wire::HandleKind::mipmapped_array;
  if (array && !handle) return CUDA_ERROR_INVALID_VALUE;
  return kind == wire::HandleKind::context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

class Flat {
 public:
  void begin(size_t bytes) { grow(bytes); }
  void put(size_t offset, const void* data, size_t bytes) noexcept {
    std::memcpy(reinterpret_cast<char*>(words_.data()) + offset, data, bytes);
  }

  // Items of plain data. The caller's pointer is not sent.
  template <class Item, class Count>
  CUresult append_plain(const Caller&, Item*& items, Count count, bool) {
    if (CUresult error = check_list(items, count, sizeof(Item))) return error;
    if (count) put(grow(count * sizeof(Item)), items, count * sizeof(Item));
    items = nullptr;
    return CUDA_SUCCESS;
  }
  // Items that contain handles (generated to_wire).
  template <class Item, class Count>
  CUresult append_structured(const Caller& caller, Item*& items, Count count, bool per_thread) {
    if (CUresult error = check_list(items, count, sizeof(Item))) return error;
    if (CUresult error = append_translated(caller, items, count, per_thread)) return error;
    items = nullptr;
    return CUDA_SUCCESS;
  }
  // As above, for a list whose count has been checked.
  template <class Item>
  CUresult append_translated(const Caller& caller, const Item* items, size_t count, bool per_thread) {
    size_t offset = grow(count * sizeof(Item));
    for (size_t i = 0; i < count; ++i) {
      std::remove_const_t<Item> item;
      std::memcpy(&item, &items[i], sizeof item);
      if (CUresult error = to_wire(caller, item, per_thread)) return error;
      put(offset + i * sizeof(Item), &item, sizeof item);
    }
    return CUDA_SUCCESS;
  }

  size_t bytes() const noexcept { return words_.size() * sizeof(uint64_t); }
  std::span<const std::byte> view() const noexcept { return std::as_bytes(std::span(words_)); }
  capnp::Data::Reader data() const noexcept { return bytes_of(words_.data(), bytes()); }

 private:
  static CUresult check_list(const void* items, uint64_t count, size_t item_bytes) noexcept {
    bool good = count <= wire::kListItemsMax && count * item_bytes <= kDataBytesMax && (items || !count);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  size_t grow(size_t bytes) {
    size_t offset = this->bytes();
    words_.resize(words_.size() + (bytes + 7) / 8);
    return offset;
  }

  std::vector<uint64_t> words_;
};

}  // namespace gpuwire::client
