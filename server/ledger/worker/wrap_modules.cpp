// Modules and libraries. They are charged by an upper bound of their images' content: the driver does not report their
// memory, and the difference of free memory before and after a load depends on all other processes. The memory of an
// image that cannot be read here is unknown, so such an image is loaded, for the driver's own error, and unloaded
// again.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/frame_charges.hpp"
#include "server/ledger/worker/image_bytes.hpp"
#include "server/ledger/worker/library_charges.hpp"

namespace gpuwire::server {
namespace {

template <class Handle, class Load, class Keep, class Unload>
CUresult charged(const Place& place, const void* image, Handle* handle, CUcontext context, Load&& load, Keep&& keep,
                 Unload&& unload) {
  LedgerParts& parts = ledger_parts();
  auto host = image_host_bytes(image);
  if (!host) return CUDA_ERROR_INVALID_IMAGE;
  auto on_device = [&] {
    auto most = image_device_bytes(image);
    if (!most) {
      CUresult result = load();
      if (result == CUDA_SUCCESS) unload();
      return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    const uint64_t bytes = sum(most->plain, most->managed);
    return take(
        parts.ledger, place.column, bytes, load, [&] { return bytes; }, [&](uint64_t) { keep(*most); }, unload);
  };
  // The host memory is reserved first, because reading the image decompresses it.
  return take(
      parts.ledger, kHostColumn, host->while_loading, on_device, [&] { return host->kept; },
      [&](uint64_t bytes) {
        parts.module_code.put(reinterpret_cast<uint64_t>(*handle),
                              {.column = kHostColumn, .bytes = bytes, .context = context});
      },
      unload);
}

template <class Load>
CUresult load_module(CUmodule* module, const void* image, Load&& load) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  return charged(
      place, image, module, place.context, load,
      [&](VariableBytes bytes) {
        parts.modules.put(reinterpret_cast<uint64_t>(*module),
                          {.column = place.column, .bytes = sum(bytes.plain, bytes.managed), .context = place.context});
      },
      [&] { parts.driver.cuModuleUnload(*module); });
}

CUresult module_load_data(CUmodule* module, const void* image) {
  return load_module(module, image, [&] { return ledger_parts().driver.cuModuleLoadData(module, image); });
}
CUresult module_load_data_ex(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                             void** values) {
  return load_module(module, image,
                     [&] { return ledger_parts().driver.cuModuleLoadDataEx(module, image, count, options, values); });
}
CUresult module_load_fat_binary(CUmodule* module, const void* image) {
  return load_module(module, image, [&] { return ledger_parts().driver.cuModuleLoadFatBinary(module, image); });
}
CUresult library_load_data(CUlibrary* library, const void* image, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption* library_options, void** library_values, unsigned library_count) {
  LedgerParts& parts = ledger_parts();
  Place place;
  // Without a context the library is charged to the first device.
  if (CUresult error = parts.here(place)) {
    if (error == CUDA_ERROR_OUT_OF_MEMORY || parts.columns.empty()) return error;
    place = {.column = parts.columns[0]};
  }
  return charged(
      place, image, library, nullptr,
      [&] {
        return parts.driver.cuLibraryLoadData(library, image, options, values, count, library_options, library_values,
                                              library_count);
      },
      [&](VariableBytes bytes) { parts.libraries->loaded(*library, bytes, place); },
      [&] { parts.driver.cuLibraryUnload(*library); });
}

CUresult module_unload(CUmodule module) {
  LedgerParts& parts = ledger_parts();
  const auto key = reinterpret_cast<uint64_t>(module);
  parts.frames->forget();
  return parts.module_code.free(
      key, [&] { return parts.modules.free(key, [&] { return parts.driver.cuModuleUnload(module); }); });
}
CUresult library_unload(CUlibrary library) {
  LedgerParts& parts = ledger_parts();
  parts.frames->forget();
  return parts.module_code.free(reinterpret_cast<uint64_t>(library), [&] {
    return parts.libraries->free(library, [&] { return parts.driver.cuLibraryUnload(library); });
  });
}

}  // namespace

void wrap_modules(DriverTable& table) {
  wrap(table.cuModuleLoadData, &module_load_data);
  wrap(table.cuModuleLoadDataEx, &module_load_data_ex);
  wrap(table.cuModuleLoadFatBinary, &module_load_fat_binary);
  wrap(table.cuLibraryLoadData, &library_load_data);
  wrap(table.cuModuleUnload, &module_unload);
  wrap(table.cuLibraryUnload, &library_unload);
}

}  // namespace gpuwire::server
