#include "client_stub/nvidia_smi/report_rows.hpp"

#include "client_stub/nvidia_smi/facts.hpp"

namespace gpuwire::nvidia_smi {

namespace {

constexpr unsigned kGraphics = 0, kSm = 1, kMemoryClock = 2, kVideo = 3;  // nvmlClockType_t
constexpr auto na = not_available;

template <unsigned kMember>
Value sram(const Card& card) {
  return sram_errors(card, kMember);
}
template <unsigned kKind, unsigned kCounter, unsigned kLocation>
Value ecc(const Card& card) {
  return ecc_errors(card, kKind, kCounter, kLocation);
}
template <unsigned long long kBit>
Value reason(const Card& card) {
  return clock_reason(card, kBit);
}
template <Name kFunction, unsigned kType>
Value mhz(const Card& card) {
  return clock(card, kFunction.text, kType);
}
template <unsigned kMember>
Value rows_remapped(const Card& card) {
  return remapped_rows(card, kMember);
}
template <unsigned kMember>
Value banks(const Card& card) {
  return remapper_histogram(card, kMember);
}
template <unsigned kMember>
Value repair(const Card& card) {
  return repair_pending(card, kMember);
}
template <bool kMemoryRate>
Value use(const Card& card) {
  return utilization(card, kMemoryRate);
}
template <int kWhich>
Value encoding(const Card& card) {
  return encoder(card, kWhich);
}
template <int kWhich>
Value capturing(const Card& card) {
  return frame_buffer_capture(card, kWhich);
}
template <int kWhich>
Value limit(const Card& card) {
  return power_limit_constraint(card, kWhich);
}
template <Name kFunction>
Value width(const Card& card) {
  return link_width(card, kFunction.text);
}

constexpr Row kRows[] = {
    {1, "Product Name", "product_name", text_of<"nvmlDeviceGetName">},
    {1, "Product Brand", "product_brand", brand},
    {1, "Product Architecture", "product_architecture", architecture},
    {1, "Display Attached", "display_attached", display_attached},
    {1, "Display Active", "display_active", enabled<"nvmlDeviceGetDisplayActive">},
    {1, "Persistence Mode", "persistence_mode", enabled<"nvmlDeviceGetPersistenceMode">},
    {1, "Addressing Mode", "addressing_mode", addressing_mode},
    {1, "MIG Mode", "mig_mode", nullptr},
    {2, "Current", "current_mig", enabled_of_two<"nvmlDeviceGetMigMode", 0>},
    {2, "Pending", "pending_mig", enabled_of_two<"nvmlDeviceGetMigMode", 1>},
    {1, nullptr, "mig_devices", [](const Card&) { return Value{"None"}; }},
    {1, "Accounting Mode", "accounting_mode", enabled<"nvmlDeviceGetAccountingMode">},
    {1, "Accounting Mode Buffer Size", "accounting_mode_buffer_size", number_of<"nvmlDeviceGetAccountingBufferSize">},
    {1, "Driver Model", "driver_model", nullptr},
    {2, "Current", "current_dm", na},
    {2, "Pending", "pending_dm", na},
    {1, "Serial Number", "serial", text_of<"nvmlDeviceGetSerial">},
    {1, "GPU UUID", "uuid", text_of<"nvmlDeviceGetUUID">},
    {1, "GPU PDI", "pdi", pdi},
    {1, "Minor Number", "minor_number", number_of<"nvmlDeviceGetMinorNumber">},
    {1, "VBIOS Version", "vbios_version", text_of<"nvmlDeviceGetVbiosVersion">},
    {1, "MultiGPU Board", "multigpu_board", multi_gpu_board},
    {1, "Board ID", "board_id", board_id},
    {1, "Board Part Number", "board_part_number", text_of<"nvmlDeviceGetBoardPartNumber">},
    {1, "GPU Part Number", "gpu_part_number", gpu_part_number},
    {1, "FRU Part Number", "gpu_fru_part_number", na},
    {1, "Platform Info", "platformInfo", nullptr},
    {2, "Module Id", "module_id", module_id},
    {1, "Inforom Version", "inforom_version", nullptr},
    {2, "Image Version", "img_version", text_of<"nvmlDeviceGetInforomImageVersion">},
    {2, "OEM Object", "oem_object", inforom<0>},
    {2, "ECC Object", "ecc_object", inforom<1>},
    {2, "Power Management Object", "pwr_object", inforom<2>},
    {1, "GPU Operation Mode", "gpu_operation_mode", nullptr},
    {2, "Current", "current_gom", na},
    {2, "Pending", "pending_gom", na},
    {1, "GPU C2C Mode", "c2c_mode", c2c_mode},
    {1, "GPU Virtualization Mode", "gpu_virtualization_mode", nullptr},
    {2, "Virtualization Mode", "virtualization_mode", virtualization_mode},
    {2, "Host VGPU Mode", "host_vgpu_mode", na},
    {2, "vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", na},
    {1, "GPU Recovery Action", "gpu_recovery_action", recovery_action},
    {1, "GSP Firmware Version", "gsp_firmware_version", gsp_version},
    {1, "PCI", "pci", nullptr},
    {2, "Bus", nullptr, pci<Pci::bus, true>},
    {2, "Device", nullptr, pci<Pci::device, true>},
    {2, "Domain", nullptr, pci<Pci::domain, true>},
    {2, "Base Classcode", nullptr, pci<Pci::base_class, true>},
    {2, "Sub Classcode", nullptr, pci<Pci::sub_class, true>},
    {2, "Device Id", nullptr, pci<Pci::device_id, true>},
    {2, nullptr, "pci_bus", pci<Pci::bus, false>},
    {2, nullptr, "pci_device", pci<Pci::device, false>},
    {2, nullptr, "pci_domain", pci<Pci::domain, false>},
    {2, nullptr, "pci_base_class", pci<Pci::base_class, false>},
    {2, nullptr, "pci_sub_class", pci<Pci::sub_class, false>},
    {2, nullptr, "pci_device_id", pci<Pci::device_id, false>},
    {2, "Bus Id", "pci_bus_id", pci<Pci::bus_id, false>},
    {2, "Sub System Id", nullptr, pci<Pci::subsystem_id, true>},
    {2, nullptr, "pci_sub_system_id", pci<Pci::subsystem_id, false>},
    {2, "GPU Link Info", "pci_gpu_link_info", nullptr},
    {3, "PCIe Generation", "pcie_gen", nullptr},
    {4, "Max", "max_link_gen", number_of<"nvmlDeviceGetMaxPcieLinkGeneration">},
    {4, "Current", "current_link_gen", number_of<"nvmlDeviceGetCurrPcieLinkGeneration">},
    {4, "Device Current", "device_current_link_gen", number_of<"nvmlDeviceGetCurrPcieLinkGeneration">},
    {4, "Device Max", "max_device_link_gen", number_of<"nvmlDeviceGetGpuMaxPcieLinkGeneration">},
    {4, "Host Max", "max_host_link_gen", na},
    {3, "Link Width", "link_widths", nullptr},
    {4, "Max", "max_link_width", width<"nvmlDeviceGetMaxPcieLinkWidth">},
    {4, "Current", "current_link_width", width<"nvmlDeviceGetCurrPcieLinkWidth">},
    {2, "Replays Since Reset", "replay_counter", number_of<"nvmlDeviceGetPcieReplayCounter">},
    {2, "Replay Number Rollovers", "replay_rollover_counter", field_of<95>},
    {2, "Tx Throughput", "tx_util", number_of<"nvmlDeviceGetPcieThroughput", "KB/s", 0>},
    {2, "Rx Throughput", "rx_util", number_of<"nvmlDeviceGetPcieThroughput", "KB/s", 1>},
    {1, "Fan Speed", "fan_speed", number_of<"nvmlDeviceGetFanSpeed", "%">},
    {1, "Performance State", "performance_state", performance_state},
    {1, "Clocks Event Reasons", "clocks_event_reasons", nullptr},
    {2, "Idle", "clocks_event_reason_gpu_idle", reason<0x1>},
    {2, "Applications Clocks Setting", "clocks_event_reason_applications_clocks_setting", reason<0x2>},
    {2, "SW Power Cap", "clocks_event_reason_sw_power_cap", reason<0x4>},
    {2, "HW Slowdown", "clocks_event_reason_hw_slowdown", reason<0x8>},
    {3, "HW Thermal Slowdown", nullptr, reason<0x40>},
    {3, "HW Power Brake Slowdown", nullptr, reason<0x80>},
    {2, nullptr, "clocks_event_reason_hw_thermal_slowdown", reason<0x40>},
    {2, nullptr, "clocks_event_reason_hw_power_brake_slowdown", reason<0x80>},
    {2, "Sync Boost", "clocks_event_reason_sync_boost", reason<0x10>},
    {2, "SW Thermal Slowdown", "clocks_event_reason_sw_thermal_slowdown", reason<0x20>},
    {2, "Display Clock Setting", "clocks_event_reason_display_clocks_setting", reason<0x100>},
    {1, "FB Memory Usage", "fb_memory_usage", nullptr},
    {2, "Total", "total", memory_of<memory, Part::total>},
    {2, "Reserved", "reserved", memory_of<memory, Part::reserved>},
    {2, "Used", "used", memory_of<memory, Part::used>},
    {2, "Free", "free", memory_of<memory, Part::free>},
    {1, "BAR1 Memory Usage", "bar1_memory_usage", nullptr},
    {2, "Total", "total", memory_of<bar1, Part::total>},
    {2, "Used", "used", memory_of<bar1, Part::used>},
    {2, "Free", "free", memory_of<bar1, Part::free>},
    {1, "Conf Compute Protected Memory Usage", "cc_protected_memory_usage", nullptr},
    {2, "Total", "total", memory_of<protected_memory, Part::total>},
    {2, "Used", "used", memory_of<protected_memory, Part::used>},
    {2, "Free", "free", memory_of<protected_memory, Part::free>},
    {1, "Compute Mode", "compute_mode", compute_mode},
    {1, "Utilization", "utilization", nullptr},
    {2, "GPU", "gpu_util", use<false>},
    {2, "Memory", "memory_util", use<true>},
    {2, "Encoder", "encoder_util", one_of_two<"nvmlDeviceGetEncoderUtilization", 0, "%">},
    {2, "Decoder", "decoder_util", one_of_two<"nvmlDeviceGetDecoderUtilization", 0, "%">},
    {2, "JPEG", "jpeg_util", one_of_two<"nvmlDeviceGetJpgUtilization", 0, "%">},
    {2, "OFA", "ofa_util", one_of_two<"nvmlDeviceGetOfaUtilization", 0, "%">},
    {1, "Encoder Stats", "encoder_stats", nullptr},
    {2, "Active Sessions", "session_count", encoding<0>},
    {2, "Average FPS", "average_fps", encoding<1>},
    {2, "Average Latency", "average_latency", encoding<2>},
    {1, "FBC Stats", "fbc_stats", nullptr},
    {2, "Active Sessions", "session_count", capturing<0>},
    {2, "Average FPS", "average_fps", capturing<1>},
    {2, "Average Latency", "average_latency", capturing<2>},
    {1, "ECC Mode", "ecc_mode", nullptr},
    {2, "Current", "current_ecc", enabled_of_two<"nvmlDeviceGetEccMode", 0>},
    {2, "Pending", "pending_ecc", enabled_of_two<"nvmlDeviceGetEccMode", 1>},
    {1, "ECC Errors", "ecc_errors", nullptr},
    {2, "Volatile", "volatile", nullptr},
    {3, "SRAM Correctable", "sram_correctable", sram<5>},
    {3, "SRAM Uncorrectable Parity", "sram_uncorrectable_parity", sram<3>},
    {3, "SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", sram<4>},
    {3, "DRAM Correctable", "dram_correctable", ecc<0, 0, 2>},
    {3, "DRAM Uncorrectable", "dram_uncorrectable", ecc<1, 0, 2>},
    {2, "Aggregate", "aggregate", nullptr},
    {3, "SRAM Correctable", "sram_correctable", sram<2>},
    {3, "SRAM Uncorrectable Parity", "sram_uncorrectable_parity", sram<0>},
    {3, "SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", sram<1>},
    {3, "DRAM Correctable", "dram_correctable", ecc<0, 1, 2>},
    {3, "DRAM Uncorrectable", "dram_uncorrectable", ecc<1, 1, 2>},
    {3, "SRAM Threshold Exceeded", "sram_threshold_exceeded", sram<11>},
    {2, "Aggregate Uncorrectable SRAM Sources", "aggregate_uncorrectable_sram_sources", nullptr},
    {3, "SRAM L2", "sram_l2", sram<6>},
    {3, "SRAM SM", "sram_sm", sram<7>},
    {3, "SRAM Microcontroller", "sram_microcontroller", sram<9>},
    {3, "SRAM PCIE", "sram_pcie", sram<8>},
    {3, "SRAM Other", "sram_other", sram<10>},
    {2, "Channel Repair Pending", "channel_repair_pending", repair<0>},
    {2, "TPC Repair Pending", "tpc_repair_pending", repair<1>},
    {2, "Unrepairable Memory", "unrepairable_memory", unrepairable_memory},
    {1, "Retired Pages", "retired_pages", nullptr},
    {2, "Single Bit ECC", nullptr, retired<0>},
    {2, "Double Bit ECC", nullptr, retired<1>},
    {2, nullptr, "multiple_single_bit_retirement", nullptr},
    {3, nullptr, "retired_count", retired<0>},
    {2, nullptr, "double_bit_retirement", nullptr},
    {3, nullptr, "retired_count", retired<1>},
    {1, "Remapped Rows", "remapped_rows", nullptr},
    {2, "Correctable Error", "remapped_row_corr", rows_remapped<0>},
    {2, "Inactive Correctable Error", "remapped_row_corr_inactive", rows_remapped<1>},
    {2, "Uncorrectable Error", "remapped_row_unc", rows_remapped<2>},
    {2, "Inactive Uncorrectable Error", "remapped_row_unc_inactive", rows_remapped<3>},
    {2, "Pending", "remapped_row_pending", rows_remapped<4>},
    {2, "Remapping Failure Occurred", "remapped_row_failure", rows_remapped<5>},
    {2, "Bank Remap Availability Histogram", "row_remapper_histogram", nullptr},
    {3, "Max", "row_remapper_histogram_max", banks<0>},
    {3, "High", "row_remapper_histogram_high", banks<1>},
    {3, "Partial", "row_remapper_histogram_partial", banks<2>},
    {3, "Low", "row_remapper_histogram_low", banks<3>},
    {3, "None", "row_remapper_histogram_none", banks<4>},
    {1, "Temperature", "temperature", nullptr},
    {2, "GPU Current Temp", "gpu_temp", temperature},
    {2, "GPU T.Limit Temp", "gpu_temp_tlimit", temperature_margin},
    {2, "GPU Shutdown T.Limit Temp", "gpu_temp_max_tlimit_threshold", field_of<193, "C">},
    {2, "GPU Slowdown T.Limit Temp", "gpu_temp_slow_tlimit_threshold", field_of<194, "C">},
    {2, "GPU Max Operating T.Limit Temp", "gpu_temp_max_gpu_tlimit_threshold", field_of<196, "C">},
    {2, "Memory Current Temp", "memory_temp", memory_temperature},
    {2, "Memory Max Operating T.Limit Temp", "gpu_temp_max_mem_tlimit_threshold", field_of<195, "C">},
    {1, "GPU Power Readings", "gpu_power_readings", nullptr},
    {2, nullptr, "power_state", performance_state},
    {2, "Average Power Draw", "average_power_draw", field_watts<185, kGpu>},
    {2, "Instantaneous Power Draw", "instant_power_draw", field_watts<186, kGpu>},
    {2, "Current Power Limit", "current_power_limit", watts_of<"nvmlDeviceGetEnforcedPowerLimit">},
    {2, "Requested Power Limit", "requested_power_limit", watts_of<"nvmlDeviceGetPowerManagementLimit">},
    {2, "Default Power Limit", "default_power_limit", watts_of<"nvmlDeviceGetPowerManagementDefaultLimit">},
    {2, "Min Power Limit", "min_power_limit", limit<0>},
    {2, "Max Power Limit", "max_power_limit", limit<1>},
    {1, "GPU Memory Power Readings", "gpu_memory_power_readings", nullptr},
    {2, "Average Power Draw", "average_power_draw", field_watts<185, kMemory>},
    {2, "Instantaneous Power Draw", "instant_power_draw", field_watts<186, kMemory>},
    {1, "Module Power Readings", "module_power_readings", nullptr},
    {2, nullptr, "power_state", performance_state},
    {2, "Average Power Draw", "average_power_draw", field_watts<185, kModule>},
    {2, "Instantaneous Power Draw", "instant_power_draw", field_watts<186, kModule>},
    {2, "Current Power Limit", "current_power_limit", field_watts<190, kModule>},
    {2, "Requested Power Limit", "requested_power_limit", field_watts<192, kModule>},
    {2, "Default Power Limit", "default_power_limit", field_watts<189, kModule>},
    {2, "Min Power Limit", "min_power_limit", field_watts<187, kModule>},
    {2, "Max Power Limit", "max_power_limit", field_watts<188, kModule>},
    {1, "Clocks", "clocks", nullptr},
    {2, "Graphics", "graphics_clock", mhz<"nvmlDeviceGetClockInfo", kGraphics>},
    {2, "SM", "sm_clock", mhz<"nvmlDeviceGetClockInfo", kSm>},
    {2, "Memory", "mem_clock", mhz<"nvmlDeviceGetClockInfo", kMemoryClock>},
    {2, "Video", "video_clock", mhz<"nvmlDeviceGetClockInfo", kVideo>},
    {1, "Applications Clocks", "applications_clocks", nullptr},
    {2, "Graphics", "graphics_clock", mhz<"nvmlDeviceGetApplicationsClock", kGraphics>},
    {2, "Memory", "mem_clock", mhz<"nvmlDeviceGetApplicationsClock", kMemoryClock>},
    {1, "Default Applications Clocks", "default_applications_clocks", nullptr},
    {2, "Graphics", "graphics_clock", mhz<"nvmlDeviceGetDefaultApplicationsClock", kGraphics>},
    {2, "Memory", "mem_clock", mhz<"nvmlDeviceGetDefaultApplicationsClock", kMemoryClock>},
    {1, "Max Clocks", "max_clocks", nullptr},
    {2, "Graphics", "graphics_clock", mhz<"nvmlDeviceGetMaxClockInfo", kGraphics>},
    {2, "SM", "sm_clock", mhz<"nvmlDeviceGetMaxClockInfo", kSm>},
    {2, "Memory", "mem_clock", mhz<"nvmlDeviceGetMaxClockInfo", kMemoryClock>},
    {2, "Video", "video_clock", mhz<"nvmlDeviceGetMaxClockInfo", kVideo>},
    {1, "Max Customer Boost Clocks", "max_customer_boost_clocks", nullptr},
    {2, "Graphics", "graphics_clock", mhz<"nvmlDeviceGetMaxCustomerBoostClock", kGraphics>},
    {1, "Processes", nullptr, [](const Card&) { return Value{"None"}; }},
    {1, nullptr, "processes", [](const Card&) { return Value{""}; }},
    {1, nullptr, "accounted_processes", [](const Card&) { return Value{""}; }},
    {1, "Capabilities", "capabilities", nullptr},
    {2, "EGM", "egm", egm},
};

}  // namespace

std::span<const Row> report_rows() { return kRows; }

}  // namespace gpuwire::nvidia_smi
