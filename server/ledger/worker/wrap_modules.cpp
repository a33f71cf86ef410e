// Modules and libraries. Charged by what stands in their images: the driver tells nobody what it takes for them, and
// how much free memory there is before and after a load depends on what all other processes do meanwhile.
#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/frame_charges.hpp"
#include "server/ledger/worker/image_bytes.hpp"

namespace gpuwire::server {
namespace {

fatbin::ComputeCapability capability(CUdevice device) {
  int major = 0, minor = 0;
  auto ask = ledger_parts().driver.cuDeviceGetAttribute;
  ask(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  ask(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return {uint32_t(major), uint32_t(minor)};
}

template <class Handle, class Load>
CUresult charged(Handle* handle, const void* image, bool of_context, Load&& load) {
  LedgerParts& parts = ledger_parts();
  Place place;
  // Without a context a library goes to the first device that uses it.
  if (CUresult error = parts.here(place)) {
    if (of_context || error == CUDA_ERROR_OUT_OF_MEMORY || parts.columns.empty()) return error;
    place = {.column = parts.columns[0]};
  }
  auto host = image_host_bytes(image);
  if (!host) return CUDA_ERROR_INVALID_IMAGE;
  // Before the image is looked into: that decompresses it.
  Reservation host_reservation(parts.ledger, kHostColumn, host->while_loading);
  if (!host_reservation) return CUDA_ERROR_OUT_OF_MEMORY;
  Reservation reservation(parts.ledger, place.column, image_device_bytes(image, capability(place.device)));
  if (!reservation) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = load();
  if (result != CUDA_SUCCESS) return result;
  auto key = reinterpret_cast<uint64_t>(*handle);
  CUcontext context = of_context ? place.context : nullptr;
  parts.modules.put(key, {.column = place.column, .bytes = reservation.bytes(), .context = context});
  reservation.keep(reservation.bytes());
  parts.module_code.put(key, {.column = kHostColumn, .bytes = host->kept, .context = context});
  host_reservation.keep(host->kept);
  return result;
}

CUresult module_load_data(CUmodule* module, const void* image) {
  return charged(module, image, true, [&] { return ledger_parts().driver.cuModuleLoadData(module, image); });
}
CUresult module_load_data_ex(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                             void** values) {
  return charged(module, image, true,
                 [&] { return ledger_parts().driver.cuModuleLoadDataEx(module, image, count, options, values); });
}
CUresult module_load_fat_binary(CUmodule* module, const void* image) {
  return charged(module, image, true, [&] { return ledger_parts().driver.cuModuleLoadFatBinary(module, image); });
}
CUresult library_load_data(CUlibrary* library, const void* image, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption* library_options, void** library_values, unsigned library_count) {
  return charged(library, image, false, [&] {
    return ledger_parts().driver.cuLibraryLoadData(library, image, options, values, count, library_options,
                                                   library_values, library_count);
  });
}

template <class Unload>
CUresult unloaded(uint64_t key, Unload&& unload) {
  LedgerParts& parts = ledger_parts();
  return parts.module_code.free(key, [&] { return parts.modules.free(key, unload); });
}

CUresult module_unload(CUmodule module) {
  LedgerParts& parts = ledger_parts();
  parts.frames->forget();
  return unloaded(reinterpret_cast<uint64_t>(module), [&] { return parts.driver.cuModuleUnload(module); });
}
CUresult library_unload(CUlibrary library) {
  LedgerParts& parts = ledger_parts();
  parts.frames->forget();
  return unloaded(reinterpret_cast<uint64_t>(library), [&] { return parts.driver.cuLibraryUnload(library); });
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
