#include "client_stub/nvidia_smi/report.hpp"

#include <algorithm>

#include "client_stub/nvidia_smi/facts.hpp"
#include "client_stub/nvidia_smi/report_rows.hpp"

namespace gpuwire::nvidia_smi {

namespace {

constexpr size_t kLabelWidth = 55;

// Words of -d and the sections that they stand for.
struct Display {
  const char* word;
  const char* section;
};
constexpr Display kDisplays[] = {
    {"MEMORY", "FB Memory Usage"},
    {"MEMORY", "BAR1 Memory Usage"},
    {"MEMORY", "Conf Compute Protected Memory Usage"},
    {"UTILIZATION", "Utilization"},
    {"ECC", "ECC Mode"},
    {"ECC", "ECC Errors"},
    {"TEMPERATURE", "Temperature"},
    {"POWER", "GPU Power Readings"},
    {"POWER", "GPU Memory Power Readings"},
    {"POWER", "Module Power Readings"},
    {"CLOCK", "Clocks"},
    {"CLOCK", "Applications Clocks"},
    {"CLOCK", "Default Applications Clocks"},
    {"CLOCK", "Max Clocks"},
    {"CLOCK", "Max Customer Boost Clocks"},
    {"COMPUTE", "Compute Mode"},
    {"PIDS", "Processes"},
    {"PERFORMANCE", "Performance State"},
    {"PERFORMANCE", "Clocks Event Reasons"},
    {"PAGE_RETIREMENT", "Retired Pages"},
    {"ENCODER_STATS", "Encoder Stats"},
    {"FBC_STATS", "FBC Stats"},
    {"ROW_REMAPPER", "Remapped Rows"},
    {"GSP_FIRMWARE_VERSION", "GSP Firmware Version"},
};

bool wanted(const char* section, const std::vector<std::string>& displays) {
  return displays.empty() || std::any_of(std::begin(kDisplays), std::end(kDisplays), [&](const Display& display) {
           return section && std::string(display.section) == section &&
                  std::find(displays.begin(), displays.end(), display.word) != displays.end();
         });
}

std::string line(int depth, const std::string& label, const std::string& value) {
  std::string text = std::string(size_t(depth) * 4, ' ') + label;
  if (text.size() < kLabelWidth) text.resize(kLabelWidth, ' ');
  return text + ": " + value + "\n";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string element(int depth, const std::string& tag, const std::string& value) {
  return std::string(size_t(depth), '\t') + "<" + tag + ">" + escaped(value) + "</" + tag + ">\n";
}

std::string card_xml(const Card& card) {
  std::string out = "\t<gpu id=\"" + escaped(pci<Pci::bus_id, false>(card).text) + "\">\n";
  std::vector<const Row*> open;
  auto close_down_to = [&](int depth) {
    while (!open.empty() && open.back()->depth >= depth) {
      out += std::string(size_t(open.back()->depth) + 1, '\t') + "</" + open.back()->tag + ">\n";
      open.pop_back();
    }
  };
  for (const Row& row : report_rows()) {
    if (!row.tag) continue;
    close_down_to(row.depth);
    if (row.get) {
      out += element(row.depth + 1, row.tag, row.get(card).with_unit());
    } else {
      out += std::string(size_t(row.depth) + 1, '\t') + "<" + row.tag + ">\n";
      open.push_back(&row);
    }
  }
  close_down_to(0);
  return out + "\t</gpu>\n\n";
}

// Rows of the system, such as the date, have no device.
Card nobody(const Library& library) { return {library, nullptr, 0, 0}; }

}  // namespace

bool display_exists(const std::string& display) {
  return std::any_of(std::begin(kDisplays), std::end(kDisplays),
                     [&](const Display& known) { return display == known.word; });
}

std::string report_text(const Library& library, const std::vector<Card>& cards,
                        const std::vector<std::string>& displays) {
  std::string out = "\n==============NVSMI LOG==============\n\n";
  out += line(0, "Timestamp", time_now());
  out += line(0, "Driver Version", driver_version(nobody(library)).text);
  out += line(0, "CUDA Version", cuda_version(nobody(library)).text) + "\n";
  out += line(0, "Attached GPUs", std::to_string(cards.empty() ? 0u : cards.front().count));
  for (const Card& card : cards) {
    out += "GPU " + pci<Pci::bus_id, false>(card).text + "\n";
    bool shown = true;
    for (const Row& row : report_rows()) {
      if (!row.label) continue;
      if (row.depth == 1) shown = wanted(row.label, displays);
      if (!shown) continue;
      out += row.get ? line(row.depth, row.label, row.get(card).with_unit())
                     : std::string(size_t(row.depth) * 4, ' ') + row.label + "\n";
    }
    out += "\n";
  }
  return out;
}

std::string report_xml(const Library& library, const std::vector<Card>& cards) {
  std::string out =
      "<?xml version=\"1.0\" ?>\n"
      "<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n"
      "<nvidia_smi_log>\n";
  out += element(1, "timestamp", time_now());
  out += element(1, "driver_version", driver_version(nobody(library)).text);
  out += element(1, "cuda_version", cuda_version(nobody(library)).text);
  out += element(1, "attached_gpus", std::to_string(cards.empty() ? 0u : cards.front().count));
  for (const Card& card : cards) out += card_xml(card);
  return out + "</nvidia_smi_log>\n";
}

}  // namespace gpuwire::nvidia_smi
