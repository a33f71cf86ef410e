#include "client_stub/nvidia_smi/summary.hpp"

#include "client_stub/nvidia_smi/facts.hpp"

namespace gpuwire::nvidia_smi {

namespace {

constexpr size_t kNameWidth = 26;

// The table's form: no space before a unit, no fraction.
std::string narrow(const Value& value) { return value.known ? value.text + value.unit : value.text.str(); }
std::string whole_watts(const Value& value) {
  return value.known ? value.text.str().substr(0, value.text.str().find('.')) + "W" : value.text.str();
}
std::string mode(const Value& value) {
  return !value.known ? value.text.str() : value.text == "Enabled" ? "On" : "Off";
}

// Uncorrected volatile errors; "Off" for a device that does not count them.
std::string errors(const Card& card) {
  Value counting = enabled_of_two<"nvmlDeviceGetEccMode", 0>(card);
  if (!counting.known) return counting.text;
  if (counting.text != "Enabled") return "Off";
  return ecc_total(card, 1, 0).text;
}

std::string card_rows(const Card& card) {
  std::string name = text_of<"nvmlDeviceGetName">(card).text;
  if (name.size() > kNameWidth) name = name.substr(0, kNameWidth - 3) + "...";
  std::string used = narrow(memory(card, Part::used)), total = narrow(memory(card, Part::total));
  std::string out =
      printed("|%4u  %-26s%7s  |   %-16s %3s |%21s |\n", card.index, name.c_str(),
              mode(enabled<"nvmlDeviceGetPersistenceMode">(card)).c_str(), pci<Pci::bus_id, false>(card).text.c_str(),
              mode(enabled<"nvmlDeviceGetDisplayActive">(card)).c_str(), errors(card).c_str());
  out += printed("| %-4s %4s    %-3s%15s / %5s |%11s / %9s |%8s %12s |\n",
                 narrow(number_of<"nvmlDeviceGetFanSpeed", "%">(card)).c_str(), narrow(temperature(card)).c_str(),
                 performance_state(card).text.c_str(), whole_watts(watts_of<"nvmlDeviceGetPowerUsage">(card)).c_str(),
                 whole_watts(watts_of<"nvmlDeviceGetEnforcedPowerLimit">(card)).c_str(), used.c_str(), total.c_str(),
                 narrow(utilization(card, false)).c_str(), compute_mode(card).text.c_str());
  out += printed("|%41s|%24s|%21s |\n", "", "", enabled_of_two<"nvmlDeviceGetMigMode", 0>(card).text.c_str());
  return out + "+-----------------------------------------+------------------------+----------------------+\n";
}

}  // namespace

std::string summary(const Library& library, const std::vector<Card>& cards) {
  Card nobody{library, nullptr, 0, 0};
  std::string driver = driver_version(nobody).text;
  std::string out = time_now() + "       \n";
  out += "+-----------------------------------------------------------------------------------------+\n";
  out += printed("| NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s|\n", driver.c_str(), driver.c_str(),
                 cuda_version(nobody).text.c_str());
  out +=
      "+-----------------------------------------+------------------------+----------------------+\n"
      "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
      "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
      "|                                         |                        |               MIG M. |\n"
      "|=========================================+========================+======================|\n";
  for (const Card& card : cards) out += card_rows(card);
  out +=
      "\n"
      "+-----------------------------------------------------------------------------------------+\n"
      "| Processes:                                                                              |\n"
      "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
      "|        ID   ID                                                               Usage      |\n"
      "|=========================================================================================|\n"
      "|  No running processes found                                                             |\n"
      "+-----------------------------------------------------------------------------------------+\n";
  return out;
}

std::string list(const std::vector<Card>& cards) {
  std::string out;
  for (const Card& card : cards)
    out += printed("GPU %u: %s (UUID: %s)\n", card.index, text_of<"nvmlDeviceGetName">(card).text.c_str(),
                   text_of<"nvmlDeviceGetUUID">(card).text.c_str());
  return out;
}

}  // namespace gpuwire::nvidia_smi
