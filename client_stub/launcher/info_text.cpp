#include <fmt/format.h>

#include <cstring>

#include "client_stub/launcher/info.hpp"
#include "protocol/units/json.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::launcher {

namespace {

std::string uuid_text(const CUuuid& uuid) {
  unsigned char b[16];
  std::memcpy(b, uuid.bytes, sizeof b);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i)
    text += fmt::format(fmt::runtime(i == 4 || i == 6 || i == 8 || i == 10 ? "-{:02x}" : "{:02x}"), b[i]);
  return text;
}

int attribute(const client::DeviceFacts& device, CUdevice_attribute which) {
  return size_t(which) < device.attributes.size() ? device.attributes[size_t(which)] : 0;
}

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string bandwidth(double bytes_per_s) { return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9); }

}  // namespace

std::string info_text(const Info& info) {
  const auto& server = info.server;
  std::string text = fmt::format(
      "server      {}, gpuwire {}\n"
      "driver      {}, CUDA {}\n",
      server.address, server.release.str(), server.driver_name.str(), cuda_version(server.driver_version));
  text += fmt::format("client      gpuwire {}, protocol {}.{}, CUDA {}\n", GPUWIRE_VERSION, wire::kProtocolMajor,
                      wire::kProtocolMinor, cuda_version(CUDA_VERSION));
  for (size_t i = 0; i < server.devices.size(); ++i) {
    const auto& device = server.devices[i];
    text += fmt::format("device {:<4} {}, compute {}.{}, {} multiprocessors, {:.1f} GiB\n            {}, PCI {}\n", i,
                        device.name.str(), attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                        attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
                        attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                        double(device.total_bytes) / double(1ull << 30), uuid_text(device.uuid),
                        device.pci_bus_id.empty() ? "-" : device.pci_bus_id.str());
  }
  if (server.devices.empty()) text += "device      none\n";
  text += fmt::format(
      "transport   {}{}\n", info.way.road,
      info.way.lanes != 0 ? fmt::format(", up to {} further connections for large copies", info.way.lanes) : "");
  text += fmt::format("connect     {:.1f} ms\n", info.way.connect_ms);
  if (info.measured)
    text += fmt::format("round trip  {:.1f} us (median; least {:.1f})\nbandwidth   {} to the server, {} from it\n",
                        info.way.round_trip_us, info.way.round_trip_least_us, bandwidth(info.way.to_server_bytes_per_s),
                        bandwidth(info.way.from_server_bytes_per_s));
  return text + info.tenant;
}

std::string info_json(const Info& info) {
  nlohmann::ordered_json out;
  const auto& server = info.server;
  out["server"] = {{"address", server.address},
                   {"release", server.release.str()},
                   {"driver", server.driver_name.str()},
                   {"driver_version", server.driver_version},
                   {"software", server.software}};
  out["client"] = {{"release", GPUWIRE_VERSION},
                   {"protocol", fmt::format("{}.{}", wire::kProtocolMajor, wire::kProtocolMinor)},
                   {"cuda_version", CUDA_VERSION}};
  out["devices"] = nlohmann::ordered_json::array();
  for (const auto& device : server.devices)
    out["devices"].push_back(
        {{"name", device.name.str()},
         {"uuid", uuid_text(device.uuid)},
         {"pci_bus_id", device.pci_bus_id.str()},
         {"compute_capability", fmt::format("{}.{}", attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                                            attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))},
         {"multiprocessors", attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)},
         {"memory_bytes", device.total_bytes}});
  if (auto tenant = parse_ordered_json(info.tenant); tenant.is_object()) out["tenant"] = std::move(tenant);
  out["transport"] = info.way.road;
  out["lanes"] = info.way.lanes;
  out["connect_ms"] = info.way.connect_ms;
  if (info.measured) {
    out["round_trip_us"] = info.way.round_trip_us;
    out["round_trip_least_us"] = info.way.round_trip_least_us;
    out["to_server_bytes_per_s"] = info.way.to_server_bytes_per_s;
    out["from_server_bytes_per_s"] = info.way.from_server_bytes_per_s;
  }
  return dump_json(out, 2, false, JsonErrorHandler::replace) + "\n";
}

}  // namespace gpuwire::launcher
