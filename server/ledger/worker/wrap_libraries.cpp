// Calls that name a library or its kernel: the first such call in a context makes the driver load the library there.
#include <algorithm>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/library_charges.hpp"

namespace gpuwire::server {

void LibraryCharges::loaded(CUlibrary library, VariableBytes bytes, const Place& place) {
  MutexLock lock(mutex_);
  Library& fresh = libraries_[library] = {.bytes = bytes};
  fresh.contexts[place.context] = place.column;
  fresh.managed[place.column] = bytes.managed;
}

LibraryCharges::Libraries::node_type LibraryCharges::take_out(CUlibrary library) {
  MutexLock lock(mutex_);
  auto entry = libraries_.extract(library);
  if (entry) {
    for (CUkernel kernel : entry.mapped().kernels) kernels_.erase(kernel);
  }
  return entry;
}

void LibraryCharges::put_back(Libraries::node_type entry) {
  MutexLock lock(mutex_);
  for (CUkernel kernel : entry.mapped().kernels) kernels_[kernel] = entry.key();
  libraries_.insert(std::move(entry));
}

void LibraryCharges::freed(const Library& library) {
  for (const auto& [context, column] : library.contexts) parts_.ledger.give_back(column, library.bytes.plain);
  for (const auto& [column, bytes] : library.managed) parts_.ledger.give_back(column, bytes);
}

void LibraryCharges::has_kernel(CUlibrary library, CUkernel kernel) {
  MutexLock lock(mutex_);
  auto found = libraries_.find(library);
  if (found != libraries_.end() && kernels_.emplace(kernel, library).second) found->second.kernels.push_back(kernel);
}

CUresult LibraryCharges::use_at(CUlibrary handle, const Place& place) {
  MutexLock lock(mutex_);
  auto found = libraries_.find(handle);
  if (found == libraries_.end()) return CUDA_SUCCESS;
  Library& library = found->second;
  if (library.contexts.contains(place.context)) return CUDA_SUCCESS;
  // The library was charged before there was a context.
  if (auto early = library.contexts.find(nullptr); early != library.contexts.end() && early->second == place.column) {
    library.contexts.erase(early);
    library.contexts[place.context] = place.column;
    return CUDA_SUCCESS;
  }
  const uint64_t managed = library.managed.contains(place.column) ? 0 : library.bytes.managed;
  // The driver reports nothing here, so the bound stays charged.
  const uint64_t bytes = sum(library.bytes.plain, managed);
  return take(
      parts_.ledger, place.column, bytes, [] { return CUDA_SUCCESS; }, [&] { return bytes; },
      [&](uint64_t) {
        library.contexts[place.context] = place.column;
        library.managed.try_emplace(place.column, managed);
      },
      [] {});
}

CUresult LibraryCharges::use(CUlibrary library) {
  Place place;
  if (parts_.here(place) != CUDA_SUCCESS) {
    if (parts_.columns.empty()) return CUDA_SUCCESS;
    place = {.column = parts_.columns[0]};
  }
  return use_at(library, place);
}

CUlibrary LibraryCharges::library_of(CUkernel kernel) {
  MutexLock lock(mutex_);
  auto found = kernels_.find(kernel);
  return found == kernels_.end() ? nullptr : found->second;
}

CUresult LibraryCharges::use(CUkernel kernel) {
  CUlibrary library = library_of(kernel);
  return library ? use(library) : CUDA_SUCCESS;
}

CUresult LibraryCharges::use(CUkernel kernel, CUdevice device) {
  CUlibrary library = library_of(kernel);
  CUcontext primary = library ? parts_.contexts->primary(device) : nullptr;
  auto column = parts_.column(device);
  if (!primary || !column) return CUDA_SUCCESS;
  return use_at(library, {.context = primary, .device = device, .column = *column});
}

void LibraryCharges::drop(CUcontext context) {
  MutexLock lock(mutex_);
  for (auto& [handle, library] : libraries_) {
    auto found = library.contexts.find(context);
    if (found == library.contexts.end()) continue;
    parts_.ledger.give_back(found->second, library.bytes.plain);
    library.contexts.erase(found);
  }
}

namespace {

CUresult library_get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuLibraryGetKernel(kernel, library, name);
  if (result == CUDA_SUCCESS) parts.libraries->has_kernel(library, *kernel);
  return result;
}

CUresult library_enumerate_kernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuLibraryEnumerateKernels(kernels, count, library);
  unsigned all = 0;
  if (result != CUDA_SUCCESS || parts.driver.cuLibraryGetKernelCount(&all, library) != CUDA_SUCCESS) return result;
  for (unsigned i = 0; i < std::min(count, all); ++i) parts.libraries->has_kernel(library, kernels[i]);
  return result;
}

template <class Other>
CUresult use(Other) {
  return CUDA_SUCCESS;
}
template <>
CUresult use(CUlibrary library) {
  return ledger_parts().libraries->use(library);
}
template <>
CUresult use(CUkernel kernel) {
  return ledger_parts().libraries->use(kernel);
}
// The function may be a CUkernel.
template <>
CUresult use(CUfunction function) {
  return ledger_parts().libraries->use(function);
}

CUresult kernel_get_attribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  if (CUresult error = parts.libraries->use(kernel, device)) return error;
  return parts.driver.cuKernelGetAttribute(value, attribute, kernel, device);
}

CUresult kernel_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  if (CUresult error = parts.libraries->use(kernel, device)) return error;
  return parts.driver.cuKernelSetAttribute(attribute, value, kernel, device);
}

CUresult kernel_set_cache_config(CUkernel kernel, CUfunc_cache config, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  if (CUresult error = parts.libraries->use(kernel, device)) return error;
  return parts.driver.cuKernelSetCacheConfig(kernel, config, device);
}

// A function of the driver that names the used objects among its arguments.
template <auto kMember, class Function>
struct Placing;
template <auto kMember, class... Arguments>
struct Placing<kMember, CUresult (*)(Arguments...)> {
  static CUresult call(Arguments... arguments) {
    CUresult result = CUDA_SUCCESS;
    static_cast<void>(((result = use<Arguments>(arguments), result == CUDA_SUCCESS) && ...));
    return result ? result : (ledger_parts().driver.*kMember)(arguments...);
  }
};
template <auto kMember>
constexpr auto placing = &Placing<kMember, decltype(function_of(kMember))>::call;

}  // namespace

void wrap_libraries(DriverTable& table) {
  wrap(table.cuLibraryGetKernel, &library_get_kernel);
  wrap(table.cuLibraryEnumerateKernels, &library_enumerate_kernels);
  wrap(table.cuLibraryGetModule, placing<&DriverTable::cuLibraryGetModule>);
  wrap(table.cuLibraryGetGlobal, placing<&DriverTable::cuLibraryGetGlobal>);
  wrap(table.cuLibraryGetManaged, placing<&DriverTable::cuLibraryGetManaged>);
  wrap(table.cuKernelGetFunction, placing<&DriverTable::cuKernelGetFunction>);
  wrap(table.cuKernelGetAttribute, &kernel_get_attribute);
  wrap(table.cuKernelSetAttribute, &kernel_set_attribute);
  wrap(table.cuKernelSetCacheConfig, &kernel_set_cache_config);
  wrap(table.cuFuncGetAttribute, placing<&DriverTable::cuFuncGetAttribute>);
  wrap(table.cuFuncSetAttribute, placing<&DriverTable::cuFuncSetAttribute>);
  wrap(table.cuFuncSetCacheConfig, placing<&DriverTable::cuFuncSetCacheConfig>);
  wrap(table.cuFuncSetSharedMemConfig, placing<&DriverTable::cuFuncSetSharedMemConfig>);
  wrap(table.cuFuncGetModule, placing<&DriverTable::cuFuncGetModule>);
  wrap(table.cuFuncGetName, placing<&DriverTable::cuFuncGetName>);
  wrap(table.cuFuncGetParamInfo, placing<&DriverTable::cuFuncGetParamInfo>);
  wrap(table.cuFuncIsLoaded, placing<&DriverTable::cuFuncIsLoaded>);
  wrap(table.cuFuncLoad, placing<&DriverTable::cuFuncLoad>);
  wrap(table.cuOccupancyMaxActiveBlocksPerMultiprocessor,
       placing<&DriverTable::cuOccupancyMaxActiveBlocksPerMultiprocessor>);
  wrap(table.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
       placing<&DriverTable::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags>);
  wrap(table.cuOccupancyAvailableDynamicSMemPerBlock, placing<&DriverTable::cuOccupancyAvailableDynamicSMemPerBlock>);
  wrap(table.cuOccupancyMaxPotentialBlockSize, placing<&DriverTable::cuOccupancyMaxPotentialBlockSize>);
  wrap(table.cuOccupancyMaxPotentialBlockSizeWithFlags,
       placing<&DriverTable::cuOccupancyMaxPotentialBlockSizeWithFlags>);
  wrap(table.cuOccupancyMaxActiveClusters, placing<&DriverTable::cuOccupancyMaxActiveClusters>);
  wrap(table.cuOccupancyMaxPotentialClusterSize, placing<&DriverTable::cuOccupancyMaxPotentialClusterSize>);
}

}  // namespace gpuwire::server
