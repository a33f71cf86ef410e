// The answer to the self-test in which every cudart 13 asks its driver whether the two are compatible.
//
// A program with a static cudart (cuBLAS, cuDNN and others contain one each) does not run on a driver without this
// answer. The self-test protects no content and no licence: the message consists of version, process, addresses and
// device identities, and both sides compute the same keyed digest, HMAC (RFC 2104) over MD2 (RFC 1319). The scheme is
// public: ZLUDA, `dark_api`, integrity_check. This file contains all of it; the build option
// GPUWIRE_CUDART_SELF_TEST=OFF omits it.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace gpuwire::cuda_abi {

// A device as cuDeviceGetUuid and the PCI attributes (50, 33, 34) describe it to the same process.
struct SelfTestDevice {
  std::array<uint8_t, 16> uuid{};
  int32_t pci_domain = 0;
  int32_t pci_bus = 0;
  int32_t pci_device = 0;
};

// Everything on which the answer depends; the function reads nothing from the process.
struct SelfTestQuestion {
  // Like cuDriverGetVersion.
  uint32_t driver_version = 0;
  // The first argument of the question; cudart passes 13000, 13001 and 13002.
  uint32_t version = 0;
  uint32_t process_id = 0;
  // Low 32 bits of pthread_self().
  uint32_t thread_id = 0;
  // The addresses that cuGetExportTable returned.
  uint64_t cudart_interface_table = 0;
  uint64_t integrity_table = 0;
  // The value in slot 1 of the integrity table.
  uint64_t integrity_function = 0;
  uint64_t unix_seconds = 0;
  // All devices, in the order of their ordinals.
  std::span<const SelfTestDevice> devices;
};

// Returns the sixteen bytes that cudart expects, as the two little-endian words of its out argument.
std::array<uint64_t, 2> self_test_answer(const SelfTestQuestion& question);

// RFC 1319 and RFC 2104 alone, for the tests.
std::array<uint8_t, 16> md2(std::span<const uint8_t> message);
std::array<uint8_t, 16> hmac_md2(std::span<const uint8_t, 16> key, std::span<const uint8_t> message);

}  // namespace gpuwire::cuda_abi
