// The properties that --query-gpu knows.
#include <algorithm>
#include <iterator>

#include "client_stub/nvidia_smi/facts.hpp"
#include "client_stub/nvidia_smi/query.hpp"

namespace gpuwire::nvidia_smi {

namespace {

constexpr auto na = not_available;

template <Name kFunction>
Value reasons(const Card& card) {
  return clock_reasons(card, kFunction.text);
}
template <unsigned kKind, unsigned kCounter>
Value ecc_all(const Card& card) {
  return ecc_total(card, kKind, kCounter);
}
template <unsigned kMember>
Value banks(const Card& card) {
  Value value = remapper_histogram(card, kMember);
  value.unit = "";
  return value;
}
constexpr auto kEnabledCurrentMig = enabled_of_two<"nvmlDeviceGetMigMode", 0>;

constexpr Property kProperties[] = {
    {"timestamp", nullptr, nullptr, timestamp},
    {"driver_version", nullptr, nullptr, driver_version},
    {"count", nullptr, nullptr, count},
    {"name", "gpu_name", nullptr, text_of<"nvmlDeviceGetName">},
    {"serial", "gpu_serial", nullptr, text_of<"nvmlDeviceGetSerial">},
    {"uuid", "gpu_uuid", nullptr, text_of<"nvmlDeviceGetUUID">},
    {"pci.bus_id", "gpu_bus_id", nullptr, pci<Pci::bus_id, false>},
    {"pci.domain", nullptr, nullptr, pci<Pci::domain, true>},
    {"pci.bus", nullptr, nullptr, pci<Pci::bus, true>},
    {"pci.device", nullptr, nullptr, pci<Pci::device, true>},
    {"pci.baseClass", nullptr, nullptr, pci<Pci::base_class, true>},
    {"pci.subClass", nullptr, nullptr, pci<Pci::sub_class, true>},
    {"pci.device_id", nullptr, nullptr, pci<Pci::device_id, true>},
    {"pci.sub_device_id", nullptr, nullptr, pci<Pci::subsystem_id, true>},
    {"pcie.link.gen.current", nullptr, nullptr, number_of<"nvmlDeviceGetCurrPcieLinkGeneration">},
    {"pcie.link.gen.gpucurrent", nullptr, nullptr, number_of<"nvmlDeviceGetCurrPcieLinkGeneration">},
    {"pcie.link.gen.max", nullptr, nullptr, number_of<"nvmlDeviceGetMaxPcieLinkGeneration">},
    {"pcie.link.gen.gpumax", nullptr, nullptr, number_of<"nvmlDeviceGetGpuMaxPcieLinkGeneration">},
    {"pcie.link.gen.hostmax", nullptr, nullptr, na},
    {"pcie.link.width.current", nullptr, nullptr, number_of<"nvmlDeviceGetCurrPcieLinkWidth">},
    {"pcie.link.width.max", nullptr, nullptr, number_of<"nvmlDeviceGetMaxPcieLinkWidth">},
    {"index", nullptr, nullptr, index},
    {"display_attached", nullptr, nullptr, display_attached},
    {"display_active", nullptr, nullptr, enabled<"nvmlDeviceGetDisplayActive">},
    {"persistence_mode", nullptr, nullptr, enabled<"nvmlDeviceGetPersistenceMode">},
    {"addressing_mode", nullptr, nullptr, addressing_mode},
    {"accounting.mode", nullptr, nullptr, enabled<"nvmlDeviceGetAccountingMode">},
    {"accounting.buffer_size", nullptr, nullptr, number_of<"nvmlDeviceGetAccountingBufferSize">},
    {"driver_model.current", nullptr, nullptr, na},
    {"driver_model.pending", nullptr, nullptr, na},
    {"vbios_version", nullptr, nullptr, text_of<"nvmlDeviceGetVbiosVersion">},
    {"inforom.img", "inforom.image", nullptr, text_of<"nvmlDeviceGetInforomImageVersion">},
    {"inforom.oem", nullptr, nullptr, inforom<0>},
    {"inforom.ecc", nullptr, nullptr, inforom<1>},
    {"inforom.pwr", "inforom.power", nullptr, inforom<2>},
    {"gpu_recovery_action", nullptr, nullptr, recovery_action},
    {"gom.current", "gpu_operation_mode.current", nullptr, na},
    {"gom.pending", "gpu_operation_mode.pending", nullptr, na},
    {"fan.speed", nullptr, "%", number_of<"nvmlDeviceGetFanSpeed", "%">},
    {"pstate", nullptr, nullptr, performance_state},
    {"clocks_event_reasons.supported", "clocks_throttle_reasons.supported", nullptr,
     reasons<"nvmlDeviceGetSupportedClocksThrottleReasons">},
    {"clocks_event_reasons.active", "clocks_throttle_reasons.active", nullptr,
     reasons<"nvmlDeviceGetCurrentClocksThrottleReasons">},
    {"clocks_event_reasons.gpu_idle", "clocks_throttle_reasons.gpu_idle", nullptr, reason<0x1>},
    {"clocks_event_reasons.applications_clocks_setting", "clocks_throttle_reasons.applications_clocks_setting", nullptr,
     reason<0x2>},
    {"clocks_event_reasons.sw_power_cap", "clocks_throttle_reasons.sw_power_cap", nullptr, reason<0x4>},
    {"clocks_event_reasons.hw_slowdown", "clocks_throttle_reasons.hw_slowdown", nullptr, reason<0x8>},
    {"clocks_event_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.hw_thermal_slowdown", nullptr, reason<0x40>},
    {"clocks_event_reasons.hw_power_brake_slowdown", "clocks_throttle_reasons.hw_power_brake_slowdown", nullptr,
     reason<0x80>},
    {"clocks_event_reasons.sw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown", nullptr, reason<0x20>},
    {"clocks_event_reasons.sync_boost", "clocks_throttle_reasons.sync_boost", nullptr, reason<0x10>},
    {"memory.total", nullptr, "MiB", memory_of<memory, Part::total>},
    {"memory.reserved", nullptr, "MiB", memory_of<memory, Part::reserved>},
    {"memory.used", nullptr, "MiB", memory_of<memory, Part::used>},
    {"memory.free", nullptr, "MiB", memory_of<memory, Part::free>},
    {"compute_mode", nullptr, nullptr, compute_mode},
    {"compute_cap", nullptr, nullptr, compute_capability},
    {"utilization.gpu", nullptr, "%", use<false>},
    {"utilization.memory", nullptr, "%", use<true>},
    {"utilization.encoder", nullptr, "%", one_of_two<"nvmlDeviceGetEncoderUtilization", 0, "%">},
    {"utilization.decoder", nullptr, "%", one_of_two<"nvmlDeviceGetDecoderUtilization", 0, "%">},
    {"utilization.jpeg", nullptr, "%", one_of_two<"nvmlDeviceGetJpgUtilization", 0, "%">},
    {"utilization.ofa", nullptr, "%", one_of_two<"nvmlDeviceGetOfaUtilization", 0, "%">},
    {"encoder.stats.sessionCount", nullptr, nullptr, encoding<0>},
    {"encoder.stats.averageFps", nullptr, nullptr, encoding<1>},
    {"encoder.stats.averageLatency", nullptr, nullptr, encoding<2>},
    {"ecc.mode.current", nullptr, nullptr, enabled_of_two<"nvmlDeviceGetEccMode", 0>},
    {"ecc.mode.pending", nullptr, nullptr, enabled_of_two<"nvmlDeviceGetEccMode", 1>},
    {"ecc.errors.corrected.volatile.device_memory", nullptr, nullptr, ecc<0, 0, 2>},
    {"ecc.errors.corrected.volatile.dram", nullptr, nullptr, ecc<0, 0, 2>},
    {"ecc.errors.corrected.volatile.sram", nullptr, nullptr, sram<5>},
    {"ecc.errors.corrected.volatile.total", nullptr, nullptr, ecc_all<0, 0>},
    {"ecc.errors.corrected.aggregate.device_memory", nullptr, nullptr, ecc<0, 1, 2>},
    {"ecc.errors.corrected.aggregate.dram", nullptr, nullptr, ecc<0, 1, 2>},
    {"ecc.errors.corrected.aggregate.sram", nullptr, nullptr, sram<2>},
    {"ecc.errors.corrected.aggregate.total", nullptr, nullptr, ecc_all<0, 1>},
    {"ecc.errors.uncorrected.volatile.device_memory", nullptr, nullptr, ecc<1, 0, 2>},
    {"ecc.errors.uncorrected.volatile.dram", nullptr, nullptr, ecc<1, 0, 2>},
    {"ecc.errors.uncorrected.volatile.total", nullptr, nullptr, ecc_all<1, 0>},
    {"ecc.errors.uncorrected.aggregate.device_memory", nullptr, nullptr, ecc<1, 1, 2>},
    {"ecc.errors.uncorrected.aggregate.dram", nullptr, nullptr, ecc<1, 1, 2>},
    {"ecc.errors.uncorrected.aggregate.total", nullptr, nullptr, ecc_all<1, 1>},
    {"ecc.errors.uncorrected.volatile.sram.parity", nullptr, nullptr, sram<3>},
    {"ecc.errors.uncorrected.volatile.sram.secded", nullptr, nullptr, sram<4>},
    {"ecc.errors.uncorrected.aggregate.sram.parity", nullptr, nullptr, sram<0>},
    {"ecc.errors.uncorrected.aggregate.sram.secded", nullptr, nullptr, sram<1>},
    {"ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", nullptr, nullptr, sram<11>},
    {"retired_pages.single_bit_ecc.count", "retired_pages.sbe", nullptr, retired<0>},
    {"retired_pages.double_bit.count", "retired_pages.dbe", nullptr, retired<1>},
    {"remapped_rows.correctable", "remapped_rows.sbe", nullptr, rows_remapped<0>},
    {"remapped_rows.correctable_inactive", nullptr, nullptr, rows_remapped<1>},
    {"remapped_rows.uncorrectable", "remapped_rows.dbe", nullptr, rows_remapped<2>},
    {"remapped_rows.uncorrectable_inactive", nullptr, nullptr, rows_remapped<3>},
    {"remapped_rows.pending", nullptr, nullptr, rows_remapped<4>},
    {"remapped_rows.failure", nullptr, nullptr, rows_remapped<5>},
    {"remapped_rows.histogram.max", nullptr, nullptr, banks<0>},
    {"remapped_rows.histogram.high", nullptr, nullptr, banks<1>},
    {"remapped_rows.histogram.partial", nullptr, nullptr, banks<2>},
    {"remapped_rows.histogram.low", nullptr, nullptr, banks<3>},
    {"remapped_rows.histogram.none", nullptr, nullptr, banks<4>},
    {"temperature.gpu", nullptr, nullptr, temperature},
    {"temperature.gpu.tlimit", nullptr, nullptr, temperature_margin},
    {"temperature.memory", nullptr, nullptr, memory_temperature},
    {"power.management", nullptr, nullptr, enabled<"nvmlDeviceGetPowerManagementMode">},
    {"power.draw", nullptr, "W", watts_of<"nvmlDeviceGetPowerUsage">},
    {"power.draw.average", "gpu.power.draw.average", "W", field_watts<185, kGpu>},
    {"power.draw.instant", "gpu.power.draw.instant", "W", field_watts<186, kGpu>},
    {"power.limit", "gpu.power.requested_limit", "W", watts_of<"nvmlDeviceGetPowerManagementLimit">},
    {"enforced.power.limit", "gpu.power.current_limit", "W", watts_of<"nvmlDeviceGetEnforcedPowerLimit">},
    {"power.default_limit", "gpu.power.default_limit", "W", watts_of<"nvmlDeviceGetPowerManagementDefaultLimit">},
    {"power.min_limit", "gpu.power.min_limit", "W", limit<0>},
    {"power.max_limit", "gpu.power.max_limit", "W", limit<1>},
    {"module.power.draw.average", nullptr, "W", field_watts<185, kModule>},
    {"module.power.draw.instant", nullptr, "W", field_watts<186, kModule>},
    {"clocks.current.graphics", "clocks.gr", "MHz", mhz<"nvmlDeviceGetClockInfo", kGraphics>},
    {"clocks.current.sm", "clocks.sm", "MHz", mhz<"nvmlDeviceGetClockInfo", kSm>},
    {"clocks.current.memory", "clocks.mem", "MHz", mhz<"nvmlDeviceGetClockInfo", kMemoryClock>},
    {"clocks.current.video", "clocks.video", "MHz", mhz<"nvmlDeviceGetClockInfo", kVideo>},
    {"clocks.applications.graphics", "clocks.applications.gr", "MHz", mhz<"nvmlDeviceGetApplicationsClock", kGraphics>},
    {"clocks.applications.memory", "clocks.applications.mem", "MHz",
     mhz<"nvmlDeviceGetApplicationsClock", kMemoryClock>},
    {"clocks.default_applications.graphics", "clocks.default_applications.gr", "MHz",
     mhz<"nvmlDeviceGetDefaultApplicationsClock", kGraphics>},
    {"clocks.default_applications.memory", "clocks.default_applications.mem", "MHz",
     mhz<"nvmlDeviceGetDefaultApplicationsClock", kMemoryClock>},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", mhz<"nvmlDeviceGetMaxClockInfo", kGraphics>},
    {"clocks.max.sm", nullptr, "MHz", mhz<"nvmlDeviceGetMaxClockInfo", kSm>},
    {"clocks.max.memory", "clocks.max.mem", "MHz", mhz<"nvmlDeviceGetMaxClockInfo", kMemoryClock>},
    {"mig.mode.current", nullptr, nullptr, kEnabledCurrentMig},
    {"mig.mode.pending", nullptr, nullptr, enabled_of_two<"nvmlDeviceGetMigMode", 1>},
    {"gsp.mode.current", nullptr, nullptr, enabled_of_two<"nvmlDeviceGetGspFirmwareMode", 0>},
    {"gsp.mode.default", nullptr, nullptr, enabled_of_two<"nvmlDeviceGetGspFirmwareMode", 1>},
    {"c2c.mode", nullptr, nullptr, c2c_mode},
    {"protected_memory.total", nullptr, "MiB", memory_of<protected_memory, Part::total>},
    {"protected_memory.used", nullptr, "MiB", memory_of<protected_memory, Part::used>},
    {"protected_memory.free", nullptr, "MiB", memory_of<protected_memory, Part::free>},
    {"platform.module_id", nullptr, nullptr, module_id},
};

}  // namespace

const Property* find_property(const std::string& name) {
  auto found = std::find_if(std::begin(kProperties), std::end(kProperties), [&](const Property& property) {
    return name == property.name || (property.other_name && name == property.other_name);
  });
  return found == std::end(kProperties) ? nullptr : found;
}

std::string property_list() {
  std::string out = "List of valid properties to query for the switch \"--query-gpu\":\n\n";
  for (const Property& property : kProperties) {
    out += std::string("\"") + property.name + "\"";
    if (property.other_name) out += std::string(" or \"") + property.other_name + "\"";
    out += "\n";
  }
  return out;
}

}  // namespace gpuwire::nvidia_smi
