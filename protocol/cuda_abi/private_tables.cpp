#include "protocol/cuda_abi/private_tables.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>

namespace gpuwire::cuda_abi {
namespace {

// Set by the first cuGetExportTable, always to the same object. Partner: the slots, which can only be called
// afterwards. Release and acquire make the host's members visible to a thread that received the table's address from
// another thread.
std::atomic<const PrivateTableHost*> the_host{nullptr};

const PrivateTableHost& host() noexcept { return *the_host.load(std::memory_order_acquire); }

CUresult unsupported_slot() noexcept { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult context_or_current(CUcontext* context) noexcept {
  if (*context != nullptr) {
    return CUDA_SUCCESS;
  }
  const CUresult result = host().current_context(context);
  return result == CUDA_SUCCESS && *context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : result;
}

// --- CUDART_INTERFACE

CUresult primary_context_handle(CUcontext* context, CUdevice device) noexcept {
  return host().primary_context_handle(context, device);
}

// cudart before 12 does not use libraries: it loads the fat binary of each of the program's files as a module of the
// current context, at the first use of one of its kernels or variables. The other parameters are compiler options, of
// which it passes none.
CUresult load_fat_binary(CUmodule* module, const void* wrapper, void* /*options*/, void* /*values*/,
                         uint32_t /*count*/) noexcept {
  return host().load_module(module, wrapper);
}

// cudart calls this at its exit for each fat binary. The module was unloaded with its context, or is unloaded with the
// process.
CUresult forget_fat_binary(const void* /*wrapper*/) noexcept { return CUDA_SUCCESS; }

// --- TOOLS_RUNTIME_CALLBACK_HOOKS: flags of the runtime calls that a profiler wants to see; all zero: none.

constexpr size_t kRuntimeFlagCount = 0x400;
constexpr size_t kOtherFlagCount = 0xE;
std::array<uint32_t, kRuntimeFlagCount> runtime_flags{};
std::array<uint32_t, kOtherFlagCount> other_flags{};

void runtime_callback_flags(void** flags, size_t* count) noexcept {
  *flags = runtime_flags.data();
  *count = kRuntimeFlagCount;
}

void other_callback_flags(void** flags, size_t* count) noexcept {
  *flags = other_flags.data();
  *count = kOtherFlagCount;
}

// --- TOOLS_TLS

CUresult current_context(CUcontext* context) noexcept { return host().current_context(context); }

// --- CONTEXT_LOCAL_STORAGE

CUresult storage_put(CUcontext context, void* key, void* value, ContextLocalStorage::Destructor destructor) noexcept {
  if (const CUresult result = context_or_current(&context); result != CUDA_SUCCESS) {
    return result;
  }
  try {
    return context_local_storage().put(context, key, value, destructor);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

CUresult storage_remove(CUcontext context, void* key) noexcept {
  const CUresult result = context_or_current(&context);
  return result == CUDA_SUCCESS ? context_local_storage().remove(context, key) : result;
}

CUresult storage_get(void** value, CUcontext context, void* key) noexcept {
  const CUresult result = context_or_current(&context);
  return result == CUDA_SUCCESS ? context_local_storage().get(context, key, value) : result;
}

// --- CONTEXT_CHECKS

CUresult check_context(CUcontext context, uint32_t* flag, void** /*left alone*/) noexcept {
  const CUresult result = context_or_current(&context);
  if (result == CUDA_SUCCESS) {
    *flag = 0;
  }
  return result;
}

int check_nothing() noexcept { return 0; }

// --- context and stream identities, for cuBLAS and cuBLASLt

CUresult context_id(CUcontext context, uint64_t* id) noexcept {
  unsigned long long value = 0;
  const CUresult result = host().context_id(context, &value);
  *id = value;
  return result;
}

// The token represents the driver's stream object and is only passed back to stream_token_id. NULL and CU_STREAM_LEGACY
// are the same stream.
CUresult stream_token(CUcontext /*context*/, CUstream stream, void** token) noexcept {
  *token = stream == nullptr ? static_cast<void*>(CU_STREAM_LEGACY) : static_cast<void*>(stream);
  return CUDA_SUCCESS;
}

CUresult stream_token_id(CUcontext context, void* token, uint64_t* id) noexcept {
  unsigned long long value = 0;
  const CUresult result = host().stream_id(context, static_cast<CUstream>(token), &value);
  *id = value;
  return result;
}

// --- the layout of the multiprocessors, which cuBLASLt requests but does not require

CUresult multiprocessor_layout(void** /*first*/, void** /*second*/) noexcept { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult free_multiprocessor_layout(void* /*first*/, void* /*second*/) noexcept { return CUDA_SUCCESS; }

// --- the functions of a module, for cuFFT; returns their number

using FunctionCallback = void (*)(void* user, CUfunction function, const char* name);

int each_module_function(CUcontext context, CUmodule module, FunctionCallback callback, void* user) noexcept {
  try {
    std::vector<ModuleFunction> functions;
    if (host().module_functions(context, module, &functions) != CUDA_SUCCESS) {
      return 0;
    }
    for (const ModuleFunction& function : functions) {
      callback(user, function.function, function.name);
    }
    return static_cast<int>(functions.size());
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// --- the tables

template <typename Function>
void* slot(Function* function) noexcept {
  return reinterpret_cast<void*>(function);
}

// A table of `Slots` words. The first word is the table's size in bytes. Slots that are not set return
// CUDA_ERROR_NOT_SUPPORTED.
template <size_t Slots>
struct Table {
  struct Entry {
    size_t index;
    void* function;
  };
  std::array<void*, Slots> words;

  Table(std::initializer_list<Entry> entries) noexcept {
    words.fill(slot(unsupported_slot));
    words[0] = reinterpret_cast<void*>(sizeof words);
    for (const Entry& entry : entries) {
      words[entry.index] = entry.function;
    }
  }
};

CUresult self_test(uint32_t version, uint64_t unix_seconds, uint64_t answer[2]) noexcept;

// Created at first use and never destroyed, because callers keep the addresses until the process ends. Function-local,
// so that a program that only loads the library runs none of this code.
struct Tables {
  Table<13> cudart_interface{
      {2, slot(primary_context_handle)}, {6, slot(load_fat_binary)}, {7, slot(forget_fat_binary)}};
  Table<7> runtime_callback_hooks{{2, slot(runtime_callback_flags)}, {6, slot(other_callback_flags)}};
  Table<3> tools_tls{{2, slot(current_context)}};
  // The only table that does not begin with its size.
  std::array<void*, 4> context_local_storage{slot(storage_put), slot(storage_remove), slot(storage_get), nullptr};
  Table<15> context_checks{{2, slot(check_context)}, {3, slot(check_nothing)}};
  Table<3> integrity{{1, slot(self_test)}};
  Table<93> identities{{4, slot(context_id)}, {39, slot(stream_token_id)}, {51, slot(stream_token)}};
  Table<17> multiprocessors{{4, slot(multiprocessor_layout)}, {13, slot(free_multiprocessor_layout)}};
  Table<99> module_info{{7, slot(each_module_function)}};
};

const Tables& tables() noexcept {
  alignas(Tables) static std::byte storage[sizeof(Tables)];
  static const Tables* const built = new (storage) Tables;
  return *built;
}

#ifdef GPUWIRE_CUDART_SELF_TEST

CUresult self_test(uint32_t version, uint64_t unix_seconds, uint64_t answer[2]) noexcept {
  try {
    std::vector<SelfTestDevice> devices;
    if (const CUresult result = host().self_test_devices(&devices); result != CUDA_SUCCESS) {
      return result;
    }
    const SelfTestQuestion question{
        .driver_version = static_cast<uint32_t>(host().driver_version()),
        .version = version,
        .process_id = static_cast<uint32_t>(getpid()),
        .thread_id = static_cast<uint32_t>(pthread_self()),
        .cudart_interface_table = reinterpret_cast<uintptr_t>(tables().cudart_interface.words.data()),
        .integrity_table = reinterpret_cast<uintptr_t>(tables().integrity.words.data()),
        .integrity_function = reinterpret_cast<uintptr_t>(slot(self_test)),
        .unix_seconds = unix_seconds,
        .devices = devices,
    };
    const auto words = self_test_answer(question);
    std::memcpy(answer, words.data(), sizeof words);
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

#else

CUresult self_test(uint32_t, uint64_t, uint64_t[2]) noexcept {
  static std::atomic_flag reported;
  if (!reported.test_and_set(std::memory_order_relaxed)) {
    host().report(
        "this build does not answer cudart's self-test (GPUWIRE_CUDART_SELF_TEST=OFF); use gpuwire's own libcudart");
  }
  return static_cast<CUresult>(103);  // cudaErrorSoftwareValidityNotEstablished, which has no name in cuda.h
}

#endif

struct Row {
  unsigned char id[16];
  const void* table;
};

const void* find_table(const CUuuid& id) noexcept {
  const Tables& all = tables();
  const Row rows[] = {
      {{0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A, 0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D, 0xF9},
       all.cudart_interface.words.data()},
      {{0xA0, 0x94, 0x79, 0x8C, 0x2E, 0x74, 0x2E, 0x74, 0x93, 0xF2, 0x08, 0x00, 0x20, 0x0C, 0x0A, 0x66},
       all.runtime_callback_hooks.words.data()},
      {{0x42, 0xD8, 0x5A, 0x81, 0x23, 0xF6, 0xCB, 0x47, 0x82, 0x98, 0xF6, 0xE7, 0x8A, 0x3A, 0xEC, 0xDC},
       all.tools_tls.words.data()},
      {{0xC6, 0x93, 0x33, 0x6E, 0x11, 0x21, 0xDF, 0x11, 0xA8, 0xC3, 0x68, 0xF3, 0x55, 0xD8, 0x95, 0x93},
       all.context_local_storage.data()},
      {{0x26, 0x3E, 0x88, 0x60, 0x7C, 0xD2, 0x61, 0x43, 0x92, 0xF6, 0xBB, 0xD5, 0x00, 0x6D, 0xFA, 0x7E},
       all.context_checks.words.data()},
      {{0xD4, 0x08, 0x20, 0x55, 0xBD, 0xE6, 0x70, 0x4B, 0x8D, 0x34, 0xBA, 0x12, 0x3C, 0x66, 0xE1, 0xF2},
       all.integrity.words.data()},
      {{0x21, 0x31, 0x8C, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8C, 0xA6, 0x41, 0xFF, 0x73, 0x24, 0xC8, 0xF2},
       all.identities.words.data()},
      {{0x17, 0x34, 0xDC, 0x26, 0x80, 0x0D, 0x47, 0x45, 0x87, 0x26, 0xC0, 0xF1, 0xE7, 0xDD, 0x8B, 0xCA},
       all.multiprocessors.words.data()},
      {{0x6E, 0x16, 0x3F, 0xBE, 0xB9, 0x58, 0x44, 0x4D, 0x83, 0x5C, 0xE1, 0x82, 0xAF, 0xF1, 0x99, 0x1E},
       all.module_info.words.data()},
  };
  for (const Row& row : rows) {
    if (std::memcmp(row.id, id.bytes, sizeof row.id) == 0) {
      return row.table;
    }
  }
  return nullptr;
}

}  // namespace

ContextLocalStorage& context_local_storage() noexcept {
  // Never destroyed: cudart removes its value in an atexit handler that may run after this library's static
  // destructors.
  alignas(ContextLocalStorage) static std::byte storage[sizeof(ContextLocalStorage)];
  static ContextLocalStorage* const built = new (storage) ContextLocalStorage;
  return *built;
}

CUresult get_export_table(const PrivateTableHost& host, const void** table, const CUuuid* id) noexcept {
  if (table == nullptr || id == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  the_host.store(&host, std::memory_order_release);
  *table = find_table(*id);
  return *table != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::cuda_abi
