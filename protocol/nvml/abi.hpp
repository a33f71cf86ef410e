// The part of the ABI between a program and the management library (NVML) that gpuwire's code reads. The layouts are
// those of the library of driver 580; their sizes are checked against the description in structures.toml.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nvml/sizes.hpp"

// The program's handle: a pointer to an object of the library that returned it.
using nvmlDevice = struct GpuwireNvmlDevice*;

namespace gpuwire::nvml {

// nvmlReturn_t.
enum Status : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kAlreadyInitialized = 5,
  kNotFound = 6,
  kInsufficientSize = 7,
  kInsufficientPower = 8,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kIrqIssue = 11,
  kLibraryNotFound = 12,
  kFunctionNotFound = 13,
  kCorruptedInforom = 14,
  kGpuIsLost = 15,
  kResetRequired = 16,
  kOperatingSystem = 17,
  kLibraryVersionMismatch = 18,
  kInUse = 19,
  kMemory = 20,
  kNoData = 21,
  kVgpuEccNotSupported = 22,
  kInsufficientResources = 23,
  kFrequencyNotSupported = 24,
  kArgumentVersionMismatch = 25,
  kDeprecated = 26,
  kNotReady = 27,
  kGpuNotFound = 28,
  kInvalidState = 29,
  kResetTypeNotSupported = 30,
  kUnknown = 999,
};

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  uint32_t domain, bus, device;
  // Device << 16 | vendor.
  uint32_t device_id;
  uint32_t subsystem_id;
  // "00000000:06:00.0".
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == sizes::nvmlPciInfo_t);

struct PciInfoExt {  // nvmlPciInfoExt_v1_t
  uint32_t version;
  uint32_t domain, bus, device, device_id, subsystem_id;
  uint32_t base_class, sub_class;
  char bus_id[32];
};
static_assert(sizeof(PciInfoExt) == (sizes::nvmlPciInfoExt_v1 & 0xffffff));

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
static_assert(sizeof(Memory) == sizes::nvmlMemory_t);

struct Memory2 {  // nvmlMemory_v2_t
  uint32_t version;
  unsigned long long total, reserved, free, used;
};
static_assert(sizeof(Memory2) == (sizes::nvmlMemory_v2 & 0xffffff));

struct Utilization {  // nvmlUtilization_t, percent of the last sampling period
  uint32_t gpu, memory;
};
static_assert(sizeof(Utilization) == sizes::nvmlUtilization_t);

struct Uuid {  // nvmlUUID_v1_t
  uint32_t version;
  // 1: text, 2: 16 bytes.
  uint32_t type;
  // A union of both.
  char value[41];
};
inline constexpr uint32_t kUuidVersion1 = 1u << 24 | 52;
static_assert(sizeof(Uuid) == (kUuidVersion1 & 0xffffff));

struct Temperature {  // nvmlTemperature_v1_t
  uint32_t version;
  // 0: the GPU.
  uint32_t sensor;
  int32_t celsius;
};
static_assert(sizeof(Temperature) == (sizes::nvmlTemperature_v1 & 0xffffff));

struct MarginTemperature {  // nvmlMarginTemperature_v1_t
  uint32_t version;
  int32_t celsius;
};
static_assert(sizeof(MarginTemperature) == (sizes::nvmlMarginTemperature_v1 & 0xffffff));

struct FieldValue {  // nvmlFieldValue_t
  uint32_t field, scope;
  int64_t timestamp_us, latency_us;
  // FieldType.
  uint32_t type;
  // Result of this field's query.
  int32_t status;
  union {
    double f64;
    uint32_t u32;
    uint64_t u64;
    int64_t i64;
    int32_t i32;
    uint16_t u16;
  } value;
};
static_assert(sizeof(FieldValue) == sizes::nvmlFieldValue_t);
enum FieldType : uint32_t {
  kFieldF64 = 0,
  kFieldU32 = 1,
  kFieldU64 = 2,
  kFieldUnsignedLongLong = 3,
  kFieldI64 = 4,
  kFieldI32 = 5,
  kFieldU16 = 6
};

struct ProcessInfo {  // nvmlProcessInfo_t
  uint32_t process_id;
  // ~0: unknown.
  unsigned long long used_bytes;
  uint32_t gpu_instance, compute_instance;
};

}  // namespace gpuwire::nvml
