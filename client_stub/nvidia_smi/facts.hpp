// The facts of a device, in printed form.
#pragma once

#include <cstdint>
#include <string>

#include "client_stub/nvidia_smi/value.hpp"

namespace gpuwire::nvidia_smi {

inline constexpr size_t kTextBytes = 128;

// "N/A", or the library's text for the status.
Value unknown(const Card& card, int status);
Value not_available(const Card& card);
// The local time, as the tool prints it above its reports.
std::string time_now();
std::string printed(const char* format, ...) __attribute__((format(printf, 1, 2)));

// --- by the signature of the library's function; `Function` names it ------------------------------------------------

template <size_t N>
struct Name {
  char text[N];
  constexpr Name(const char (&from)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};

template <Name kFunction>
Value text_of(const Card& card) {
  char text[kTextBytes] = {};
  int status = card.call(kFunction.text, &text[0], unsigned(sizeof text));
  return status ? unknown(card, status) : Value{text};
}

// A number; the arguments precede the pointer to it.
template <Name kFunction, Name kUnit = "", unsigned... kArguments>
Value number_of(const Card& card) {
  unsigned number = 0;
  int status = card.call(kFunction.text, kArguments..., &number);
  return status ? unknown(card, status) : Value{std::to_string(number), kUnit.text};
}

// The first or the second of two numbers.
template <Name kFunction, int kWhich, Name kUnit = "">
Value one_of_two(const Card& card) {
  unsigned numbers[2] = {};
  int status = card.call(kFunction.text, &numbers[0], &numbers[1]);
  return status ? unknown(card, status) : Value{std::to_string(numbers[kWhich]), kUnit.text};
}

template <unsigned kObject>
Value inforom(const Card& card) {
  char text[kTextBytes] = {};
  int status = card.call("nvmlDeviceGetInforomVersion", kObject, &text[0], unsigned(sizeof text));
  return status ? unknown(card, status) : Value{text};
}
// The library returns the pages; the tool prints their number.
template <unsigned kCause>
Value retired(const Card& card) {
  unsigned pages = 0;
  int status = card.call("nvmlDeviceGetRetiredPages", kCause, &pages, static_cast<unsigned long long*>(nullptr));
  return status && status != nvml::kInsufficientSize ? unknown(card, status) : Value{std::to_string(pages)};
}

Value on_off(const Card& card, int status, unsigned value);
template <Name kFunction>
Value enabled(const Card& card) {
  unsigned value = 0;
  int status = card.call(kFunction.text, &value);
  return on_off(card, status, value);
}
template <Name kFunction, int kWhich>
Value enabled_of_two(const Card& card) {
  unsigned values[2] = {};
  int status = card.call(kFunction.text, &values[0], &values[1]);
  return on_off(card, status, values[kWhich]);
}

Value watts(const Card& card, int status, unsigned milliwatts);
template <Name kFunction>
Value watts_of(const Card& card) {
  unsigned milliwatts = 0;
  int status = card.call(kFunction.text, &milliwatts);
  return watts(card, status, milliwatts);
}

// --- fields (nvmlDeviceGetFieldValues) -----------------------------------------------------------------------------

// The subjects of the power fields.
enum Scope : unsigned { kGpu = 0, kModule = 1, kMemory = 2 };
int field(const Card& card, unsigned id, unsigned scope, long long& value);
template <unsigned kId, Name kUnit = "", unsigned kScope = 0>
Value field_of(const Card& card) {
  long long value = 0;
  int status = field(card, kId, kScope, value);
  return status ? unknown(card, status) : Value{std::to_string(value), kUnit.text};
}
template <unsigned kId, Scope kScope>
Value field_watts(const Card& card) {
  long long value = 0;
  int status = field(card, kId, kScope, value);
  return watts(card, status, unsigned(value));
}

// --- other facts ----------------------------------------------------------------------------------------------------

Value timestamp(const Card&);  // "2026/11/21 14:23:45.631"
Value driver_version(const Card&);
Value cuda_version(const Card&);  // "13.0"
Value index(const Card&);
Value count(const Card&);
Value brand(const Card&);
Value architecture(const Card&);
Value addressing_mode(const Card&);
Value multi_gpu_board(const Card&);
Value board_id(const Card&);
Value gpu_part_number(const Card&);
Value pdi(const Card&);
Value module_id(const Card&);
Value c2c_mode(const Card&);
Value virtualization_mode(const Card&);
Value recovery_action(const Card&);
Value gsp_version(const Card&);
Value performance_state(const Card&);
Value compute_mode(const Card&);
Value compute_capability(const Card&);
Value display_attached(const Card&);
Value egm(const Card&);

enum class Pci { bus, device, domain, base_class, sub_class, device_id, bus_id, subsystem_id };
template <Pci kPart, bool kPrefix>
Value pci(const Card& card) {
  Value pci_part(const Card& card, Pci part, bool prefix);
  return pci_part(card, kPart, kPrefix);
}
Value link_width(const Card&, const char* function);

enum class Part { total, reserved, used, free };
Value memory(const Card&, Part part);
Value bar1(const Card&, Part part);
Value protected_memory(const Card&, Part part);
template <Value (*kOf)(const Card&, Part), Part kPart>
Value memory_of(const Card& card) {
  return kOf(card, kPart);
}

Value utilization(const Card&, bool memory);
Value encoder(const Card&, int which);
Value frame_buffer_capture(const Card&, int which);
Value clock_reason(const Card&, unsigned long long bit);
Value clock_reasons(const Card&, const char* function);
Value temperature(const Card&);
Value temperature_margin(const Card&);
Value memory_temperature(const Card&);
Value clock(const Card&, const char* function, unsigned type);
Value power_limit_constraint(const Card&, int which);

// `kind`: 0 corrected, 1 uncorrected; `counter`: 0 volatile, 1 aggregate; location: nvmlMemoryLocation_t.
Value ecc_errors(const Card&, unsigned kind, unsigned counter, unsigned location);
Value ecc_total(const Card&, unsigned kind, unsigned counter);
// Members of nvmlEccSramErrorStatus_v1_t, in its order.
Value sram_errors(const Card&, unsigned member);
Value remapped_rows(const Card&, unsigned member);
Value remapper_histogram(const Card&, unsigned member);
Value repair_pending(const Card&, unsigned member);
Value unrepairable_memory(const Card&);

// --- the same with constant arguments, for tables -------------------------------------------------------------------

// nvmlClockType_t.
inline constexpr unsigned kGraphics = 0, kSm = 1, kMemoryClock = 2, kVideo = 3;

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
template <bool kMemoryRate>
Value use(const Card& card) {
  return utilization(card, kMemoryRate);
}
template <int kWhich>
Value encoding(const Card& card) {
  return encoder(card, kWhich);
}
template <int kWhich>
Value limit(const Card& card) {
  return power_limit_constraint(card, kWhich);
}

}  // namespace gpuwire::nvidia_smi
