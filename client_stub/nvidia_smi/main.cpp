// nvidia-smi for machines without local GPUs: the queries that scripts and frameworks make with NVIDIA's tool, answered
// by libnvidia-ml.so.1 alone.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "client_stub/nvidia_smi/facts.hpp"
#include "client_stub/nvidia_smi/options.hpp"
#include "client_stub/nvidia_smi/report.hpp"
#include "client_stub/nvidia_smi/summary.hpp"

namespace gpuwire::nvidia_smi {
namespace {

// The exit codes of NVIDIA's tool.
enum Exit : int { kDone = 0, kWrongUse = 2, kNoPermission = 4, kNotFound = 6, kNoDriver = 9 };

// The processes of a device are not reported: only the header is printed.
constexpr struct {
  const char* name;
  const char* unit;
} kAppProperties[] = {{"timestamp", nullptr},    {"gpu_name", nullptr}, {"gpu_bus_id", nullptr},
                      {"gpu_serial", nullptr},   {"gpu_uuid", nullptr}, {"pid", nullptr},
                      {"process_name", nullptr}, {"name", nullptr},     {"used_gpu_memory", "MiB"},
                      {"used_memory", "MiB"}};

std::string not_a_property(const std::string& name) {
  return "Field \"" + name + "\" is not a valid field to query.\n\n";
}

int fail(int code, const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return code;
}

class Output {
 public:
  explicit Output(const std::string& file) : file_(file.empty() ? stdout : std::fopen(file.c_str(), "w")) {}
  ~Output() {
    if (file_ && file_ != stdout) std::fclose(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  bool good() const { return file_ != nullptr; }
  bool write(const std::string& text) { return std::fputs(text.c_str(), file_) >= 0 && std::fflush(file_) == 0; }

 private:
  std::FILE* file_;
};

// The text of one round; `first`: with headers.
using Round = std::string (*)(const Library&, const std::vector<Card>&, const Options&, const Format&, bool first);

std::string gpu_csv(const Library&, const std::vector<Card>& cards, const Options& options, const Format& format,
                    bool first) {
  std::string unknown;
  auto properties = find_properties(options.properties, unknown);
  std::string out = first && format.header ? csv_header(properties, format) : "";
  for (const Card& card : cards) out += csv_line(card, properties, format);
  return out;
}

std::string app_csv(const Options& options, const Format& format, std::string& unknown) {
  std::string header;
  for (size_t begin = 0; begin <= options.properties.size();) {
    size_t end = std::min(options.properties.find(',', begin), options.properties.size());
    std::string name = options.properties.substr(begin, end - begin);
    name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
    begin = end + 1;
    auto property = std::find_if(std::begin(kAppProperties), std::end(kAppProperties),
                                 [&](const auto& one) { return name == one.name; });
    if (property == std::end(kAppProperties)) {
      unknown = name;
      return {};
    }
    header += (header.empty() ? "" : ", ") + name +
              (property->unit && format.units ? std::string(" [") + property->unit + "]" : "");
  }
  return format.header ? header + "\n" : "";
}

Round round_of(const Options& options) {
  switch (options.task) {
    case Task::list:
      return [](const Library&, const std::vector<Card>& cards, const Options&, const Format&, bool) {
        return list(cards);
      };
    case Task::report:
      return [](const Library& library, const std::vector<Card>& cards, const Options& given, const Format&, bool) {
        return given.xml ? report_xml(library, cards) : report_text(library, cards, given.displays);
      };
    case Task::query_gpu: return gpu_csv;
    case Task::query_apps:
      return [](const Library&, const std::vector<Card>&, const Options& given, const Format& format, bool first) {
        std::string unknown;
        return first ? app_csv(given, format, unknown) : std::string();
      };
    default:
      return [](const Library& library, const std::vector<Card>& cards, const Options&, const Format&, bool) {
        return summary(library, cards);
      };
  }
}

int refuse_change(const Library& library, const std::vector<Card>& cards, const Options& options) {
  for (const Card& card : cards)
    std::printf("Unable to apply %s to GPU %s: %s\nTerminating early due to previous errors.\n", options.change.c_str(),
                pci<Pci::bus_id, false>(card).text.c_str(), library.error_text(nvml::kNoPermission).c_str());
  return kNoPermission;
}

// The first words are those of NVIDIA's tool, which scripts search for; the unreachable object differs.
std::string no_server() {
  const char* server = std::getenv("GPUWIRE_SERVER");
  if (!server || !*server)
    return "NVIDIA-SMI has failed because no gpuwire server is named: start it by 'gpuwire run --server HOST:PORT -- "
           "nvidia-smi', or set GPUWIRE_SERVER.\n\n";
  return "NVIDIA-SMI has failed because it couldn't communicate with the gpuwire server " + std::string(server) +
         ". The reason is on standard error.\n\n";
}

int show(const Options& options, const Format& format) {
  Library library;
  if (library.status() != nvml::kSuccess) return fail(kNoDriver, no_server());
  std::vector<Card> cards = options.ids.empty() ? all_cards(library) : find_cards(library, options.ids);
  if (cards.empty()) return fail(kNotFound, "No devices were found\n");
  if (options.task == Task::change) return refuse_change(library, cards, options);
  Output output(options.file);
  if (!output.good()) return fail(kWrongUse, "Unable to open " + options.file + "\n");
  Round round = round_of(options);
  for (bool first = true;; first = false) {
    if (!output.write(round(library, cards, options, format, first))) return kWrongUse;
    if (options.interval_ms == 0) return kDone;
    ::usleep(useconds_t(options.interval_ms) * 1000);
  }
}

int version() {
  Library library;
  Card nobody{library, nullptr, 0, 0};
  std::printf("NVIDIA-SMI version  : gpuwire %s\nDRIVER version      : %s\nCUDA Version        : %s\n", GPUWIRE_VERSION,
              driver_version(nobody).text.c_str(), cuda_version(nobody).text.c_str());
  return kDone;
}

int run(int argc, char** argv) {
  Options options;
  if (std::string wrong = parse(argc, argv, options); !wrong.empty()) return fail(kWrongUse, wrong);
  Format format;
  if (options.format && !parse_format(*options.format, format))
    return fail(kWrongUse, "Format modifier is not recognized.\n");
  std::string unknown;
  if (options.task == Task::query_gpu) find_properties(options.properties, unknown);
  if (options.task == Task::query_apps) app_csv(options, format, unknown);
  if (!unknown.empty()) return fail(kWrongUse, not_a_property(unknown));
  switch (options.task) {
    case Task::help: return fail(kDone, kHelp);
    case Task::help_properties: return fail(kDone, property_list());
    case Task::nothing_excluded: return kDone;
    case Task::version: return version();
    default: return show(options, format);
  }
}

}  // namespace
}  // namespace gpuwire::nvidia_smi

int main(int argc, char** argv) { return gpuwire::nvidia_smi::run(argc, argv); }
