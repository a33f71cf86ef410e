#include "client_stub/nvidia_smi/facts.hpp"

#include <sys/time.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace gpuwire::nvidia_smi {

using namespace nvml;

namespace {

std::string upper_hex(unsigned long long value, int digits) { return printed("%0*llX", digits, value); }

// An enumeration's text by its number.
template <size_t N>
Value named(const Card& card, int status, unsigned value, const char* const (&names)[N], const char* other) {
  if (status) return unknown(card, status);
  return Value{value < N && names[value] ? names[value] : other};
}

Value yes_no(const Card& card, int status, unsigned long long value) {
  return status ? unknown(card, status) : Value{value ? "Yes" : "No"};
}

unsigned long long mebibytes(unsigned long long bytes) { return bytes >> 20; }
// NVIDIA's tool rounds the parts of the memory up to mebibytes.
std::string mebibytes_up(unsigned long long bytes) { return std::to_string(mebibytes(bytes + (1 << 20) - 1)); }

// nvmlEccSramErrorStatus_v1_t
struct SramErrors {
  uint32_t version;
  unsigned long long counts[11];
  uint32_t threshold_exceeded;
};
static_assert(sizeof(SramErrors) == (sizes::nvmlEccSramErrorStatus_v1 & 0xffffff));

struct RepairStatus {  // nvmlRepairStatus_v1_t
  uint32_t version, pending[2];
};
static_assert(sizeof(RepairStatus) == (sizes::nvmlRepairStatus_v1 & 0xffffff));

struct AddressingMode {  // nvmlDeviceAddressingMode_v1_t
  uint32_t version, mode;
};
static_assert(sizeof(AddressingMode) == (sizes::nvmlDeviceAddressingMode_v1 & 0xffffff));

struct Capabilities {  // nvmlDeviceCapabilities_v1_t
  uint32_t version, mask;
};
static_assert(sizeof(Capabilities) == (sizes::nvmlDeviceCapabilities_v1 & 0xffffff));

struct Pdi {  // nvmlPdi_v1_t
  uint32_t version;
  unsigned long long value;
};
static_assert(sizeof(Pdi) == (sizes::nvmlPdi_v1 & 0xffffff));

}  // namespace

std::string time_now() {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &local);
  return text;
}

std::string printed(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

Value unknown(const Card& card, int status) {
  bool not_offered = status == kNotSupported || status == kFunctionNotFound || status == kNotFound ||
                     status == kArgumentVersionMismatch || status == kNotReady || status == kNoData;
  return {not_offered ? "N/A" : card.library.error_text(status), "", false};
}

Value not_available(const Card&) { return {"N/A", "", false}; }

Value on_off(const Card& card, int status, unsigned value) {
  return status ? unknown(card, status) : Value{value ? "Enabled" : "Disabled"};
}

Value watts(const Card& card, int status, unsigned milliwatts) {
  return status ? unknown(card, status) : Value{printed("%.2f", milliwatts / 1000.0), "W"};
}

int field(const Card& card, unsigned id, unsigned scope, long long& value) {
  FieldValue asked{};
  asked.field = id;
  asked.scope = scope;
  if (int status = card.call("nvmlDeviceGetFieldValues", 1, &asked)) return status;
  if (asked.status) return asked.status;
  switch (asked.type) {
    case kFieldF64: value = static_cast<long long>(asked.value.f64); break;
    case kFieldU32: value = asked.value.u32; break;
    case kFieldI32: value = asked.value.i32; break;
    case kFieldU16: value = asked.value.u16; break;
    default: value = asked.value.i64; break;
  }
  return kSuccess;
}

// --- the system ----------------------------------------------------------------------------------------------------

Value timestamp(const Card&) {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  char text[64];
  std::strftime(text, sizeof text, "%Y/%m/%d %H:%M:%S", &local);
  return {printed("%s.%03d", text, int(now.tv_usec / 1000))};
}

Value driver_version(const Card& card) {
  char text[kTextBytes] = {};
  int status = card.library.call("nvmlSystemGetDriverVersion", &text[0], unsigned(sizeof text));
  return status ? unknown(card, status) : Value{text};
}

Value cuda_version(const Card& card) {
  int version = 0;
  int status = card.library.call("nvmlSystemGetCudaDriverVersion_v2", &version);
  return status ? unknown(card, status) : Value{printed("%d.%d", version / 1000, version % 1000 / 10)};
}

// --- identity ------------------------------------------------------------------------------------------------------

Value index(const Card& card) { return {std::to_string(card.index)}; }
Value count(const Card& card) { return {std::to_string(card.count)}; }

Value brand(const Card& card) {
  static constexpr const char* kNames[] = {nullptr,
                                           "Quadro",
                                           "Tesla",
                                           "NVS",
                                           "Grid",
                                           "GeForce",
                                           "Titan",
                                           "NVIDIA Virtual Applications",
                                           "NVIDIA Virtual PC",
                                           "NVIDIA Virtual Compute Server",
                                           "NVIDIA RTX Virtual Workstation",
                                           "NVIDIA Cloud Gaming",
                                           "Quadro RTX",
                                           "NVIDIA RTX",
                                           "NVIDIA",
                                           "GeForce RTX",
                                           "Titan RTX"};
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetBrand", &value);
  return named(card, status, value, kNames, "Unknown");
}

Value architecture(const Card& card) {
  static constexpr const char* kNames[] = {nullptr,  nullptr,  "Kepler",       "Maxwell", "Pascal",   "Volta",
                                           "Turing", "Ampere", "Ada Lovelace", "Hopper",  "Blackwell"};
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetArchitecture", &value);
  return named(card, status, value, kNames, "Unknown");
}

Value addressing_mode(const Card& card) {
  static constexpr const char* kNames[] = {"None", "HMM", "ATS"};
  AddressingMode mode{sizes::nvmlDeviceAddressingMode_v1, 0};
  int status = card.call("nvmlDeviceGetAddressingMode", &mode);
  return named(card, status, mode.mode, kNames, "None");
}

Value multi_gpu_board(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetMultiGpuBoard", &value);
  return yes_no(card, status, value);
}

Value board_id(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetBoardId", &value);
  return status ? unknown(card, status) : Value{printed("0x%x", value)};
}

Value pdi(const Card& card) {
  Pdi value{sizes::nvmlPdi_v1, 0};
  int status = card.call("nvmlDeviceGetPdi", &value);
  return status ? unknown(card, status) : Value{printed("0x%llx", value.value)};
}

Value module_id(const Card& card) { return number_of<"nvmlDeviceGetModuleId">(card); }

Value c2c_mode(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetC2cModeInfoV", &value);
  return on_off(card, status, value);
}

Value virtualization_mode(const Card& card) {
  static constexpr const char* kNames[] = {"None", "Pass-Through", "VGPU", "Host VGPU", "VSGA"};
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetVirtualizationMode", &value);
  return named(card, status, value, kNames, "None");
}

Value recovery_action(const Card& card) {
  static constexpr const char* kNames[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"};
  constexpr unsigned kRecoveryAction = 230;  // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
  long long value = 0;
  int status = field(card, kRecoveryAction, 0, value);
  return named(card, status, unsigned(value), kNames, "Unknown");
}

Value gsp_version(const Card& card) {
  char text[kTextBytes] = {};
  int status = card.call("nvmlDeviceGetGspFirmwareVersion", &text[0]);
  return status ? unknown(card, status) : Value{text};
}

Value performance_state(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetPerformanceState", &value);
  if (status) return unknown(card, status);
  return value < 16 ? Value{printed("P%u", value)} : not_available(card);
}

Value compute_mode(const Card& card) {
  static constexpr const char* kNames[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetComputeMode", &value);
  return named(card, status, value, kNames, "Unknown");
}

Value compute_capability(const Card& card) {
  int major = 0, minor = 0;
  int status = card.call("nvmlDeviceGetCudaComputeCapability", &major, &minor);
  return status ? unknown(card, status) : Value{printed("%d.%d", major, minor)};
}

// The library reports the "display mode" as attached or not.
Value display_attached(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetDisplayMode", &value);
  return yes_no(card, status, value);
}

Value egm(const Card& card) {
  constexpr unsigned kEgm = 1;
  Capabilities own{sizes::nvmlDeviceCapabilities_v1, 0};
  int status = card.call("nvmlDeviceGetCapabilities", &own);
  return status ? unknown(card, status) : Value{own.mask & kEgm ? "enabled" : "disabled"};
}

// --- PCI Express ---------------------------------------------------------------------------------------------------

Value pci_part(const Card& card, Pci part, bool prefix) {
  PciInfo info{};
  int status = card.call("nvmlDeviceGetPciInfo_v3", &info);
  PciInfoExt more{};
  more.version = sizes::nvmlPciInfoExt_v1;
  if (part == Pci::base_class || part == Pci::sub_class) status = card.call("nvmlDeviceGetPciInfoExt", &more);
  if (status) return unknown(card, status);
  std::string hex = prefix ? "0x" : "";
  switch (part) {
    case Pci::bus: return {hex + upper_hex(info.bus, 2)};
    case Pci::device: return {hex + upper_hex(info.device, 2)};
    case Pci::domain: return {hex + upper_hex(info.domain, 4)};
    case Pci::base_class: return {hex + upper_hex(more.base_class, 1)};
    case Pci::sub_class: return {hex + upper_hex(more.sub_class, 1)};
    case Pci::device_id: return {hex + upper_hex(info.device_id, 8)};
    case Pci::subsystem_id: return {hex + upper_hex(info.subsystem_id, 8)};
    case Pci::bus_id: break;
  }
  return {info.bus_id};
}

// No function reports a part number such as "2335-895-A1", whose first part is the PCI device.
Value gpu_part_number(const Card& card) { return not_available(card); }

Value link_width(const Card& card, const char* function) {
  unsigned value = 0;
  int status = card.call(function, &value);
  return status ? unknown(card, status) : Value{printed("%ux", value)};
}

// --- memory --------------------------------------------------------------------------------------------------------

Value memory(const Card& card, Part part) {
  Memory2 info{sizes::nvmlMemory_v2, 0, 0, 0, 0};
  int status = card.call("nvmlDeviceGetMemoryInfo_v2", &info);
  if (status) return unknown(card, status);
  switch (part) {
    case Part::total: return {mebibytes_up(info.total), "MiB"};
    case Part::reserved: return {mebibytes_up(info.reserved), "MiB"};
    case Part::used: return {mebibytes_up(info.used), "MiB"};
    case Part::free: break;
  }
  return {mebibytes_up(info.free), "MiB"};
}

namespace {
// The free part is the difference of the other two, rounded down.
Value three(const Card& card, const char* function, Part part) {
  struct {
    unsigned long long total, free, used;
  } bytes{};
  int status = card.call(function, &bytes.total);
  if (status) return unknown(card, status);
  unsigned long long total = mebibytes(bytes.total), used = mebibytes(bytes.used);
  return {std::to_string(part == Part::total ? total : part == Part::used ? used : total - used), "MiB"};
}
}  // namespace

Value bar1(const Card& card, Part part) { return three(card, "nvmlDeviceGetBAR1MemoryInfo", part); }
Value protected_memory(const Card& card, Part part) {
  return three(card, "nvmlDeviceGetConfComputeProtectedMemoryUsage", part);
}

// --- use -----------------------------------------------------------------------------------------------------------

Value utilization(const Card& card, bool memory) {
  Utilization rates{};
  int status = card.call("nvmlDeviceGetUtilizationRates", &rates);
  return status ? unknown(card, status) : Value{std::to_string(memory ? rates.memory : rates.gpu), "%"};
}

Value encoder(const Card& card, int which) {
  unsigned values[3] = {};
  int status = card.call("nvmlDeviceGetEncoderStats", &values[0], &values[1], &values[2]);
  return status ? unknown(card, status) : Value{std::to_string(values[which])};
}

Value frame_buffer_capture(const Card& card, int which) {
  unsigned values[3] = {};
  int status = card.call("nvmlDeviceGetFBCStats", &values[0]);
  return status ? unknown(card, status) : Value{std::to_string(values[which])};
}

// --- clocks, temperature, power ------------------------------------------------------------------------------------

Value clock_reason(const Card& card, unsigned long long bit) {
  unsigned long long reasons = 0;
  int status = card.call("nvmlDeviceGetCurrentClocksThrottleReasons", &reasons);
  return status ? unknown(card, status) : Value{reasons & bit ? "Active" : "Not Active"};
}

Value clock_reasons(const Card& card, const char* function) {
  unsigned long long reasons = 0;
  int status = card.call(function, &reasons);
  return status ? unknown(card, status) : Value{"0x" + upper_hex(reasons, 16)};
}

Value temperature(const Card& card) {
  Temperature now{sizes::nvmlTemperature_v1, 0, 0};
  int status = card.call("nvmlDeviceGetTemperatureV", &now);
  return status ? unknown(card, status) : Value{std::to_string(now.celsius), "C"};
}

Value temperature_margin(const Card& card) {
  MarginTemperature margin{sizes::nvmlMarginTemperature_v1, 0};
  int status = card.call("nvmlDeviceGetMarginTemperature", &margin);
  return status ? unknown(card, status) : Value{std::to_string(margin.celsius), "C"};
}

Value memory_temperature(const Card& card) {
  constexpr unsigned kMemoryTemperature = 82;  // NVML_FI_DEV_MEMORY_TEMP
  long long value = 0;
  int status = field(card, kMemoryTemperature, 0, value);
  return status ? unknown(card, status) : Value{std::to_string(value), "C"};
}

Value clock(const Card& card, const char* function, unsigned type) {
  unsigned mhz = 0;
  int status = card.call(function, type, &mhz);
  return status ? unknown(card, status) : Value{std::to_string(mhz), "MHz"};
}

Value power_limit_constraint(const Card& card, int which) {
  unsigned limits[2] = {};
  int status = card.call("nvmlDeviceGetPowerManagementLimitConstraints", &limits[0], &limits[1]);
  return watts(card, status, limits[which]);
}

// --- errors of the memory ------------------------------------------------------------------------------------------

Value ecc_errors(const Card& card, unsigned kind, unsigned counter, unsigned location) {
  unsigned long long errors = 0;
  int status = card.call("nvmlDeviceGetMemoryErrorCounter", kind, counter, location, &errors);
  return status ? unknown(card, status) : Value{std::to_string(errors)};
}

Value ecc_total(const Card& card, unsigned kind, unsigned counter) {
  unsigned long long errors = 0;
  int status = card.call("nvmlDeviceGetTotalEccErrors", kind, counter, &errors);
  return status ? unknown(card, status) : Value{std::to_string(errors)};
}

Value sram_errors(const Card& card, unsigned member) {
  SramErrors errors{sizes::nvmlEccSramErrorStatus_v1, {}, 0};
  int status = card.call("nvmlDeviceGetSramEccErrorStatus", &errors);
  constexpr unsigned kThreshold = 11;
  if (member == kThreshold) return yes_no(card, status, errors.threshold_exceeded);
  return status ? unknown(card, status) : Value{std::to_string(errors.counts[member])};
}

Value remapped_rows(const Card& card, unsigned member) {
  unsigned rows[sizes::nvmlRemappedRowsInfo_v2_t / sizeof(unsigned)] = {};
  int status = card.call("nvmlDeviceGetRemappedRows_v2", &rows[0]);
  constexpr unsigned kPending = 4;
  if (member >= kPending) return yes_no(card, status, rows[member]);
  return status ? unknown(card, status) : Value{std::to_string(rows[member])};
}

Value remapper_histogram(const Card& card, unsigned member) {
  unsigned banks[sizes::nvmlRowRemapperHistogramValues_t / sizeof(unsigned)] = {};
  int status = card.call("nvmlDeviceGetRowRemapperHistogram", &banks[0]);
  return status ? unknown(card, status) : Value{std::to_string(banks[member]), "bank(s)"};
}

Value repair_pending(const Card& card, unsigned member) {
  RepairStatus repair{sizes::nvmlRepairStatus_v1, {}};
  int status = card.call("nvmlDeviceGetRepairStatus", &repair);
  return yes_no(card, status, repair.pending[member]);
}

Value unrepairable_memory(const Card& card) {
  unsigned value = 0;
  int status = card.call("nvmlDeviceGetUnrepairableMemoryFlag_v1", &value);
  return yes_no(card, status, value);
}

}  // namespace gpuwire::nvidia_smi
