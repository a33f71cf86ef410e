#include "client_stub/nvidia_smi/options.hpp"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "client_stub/nvidia_smi/report.hpp"

namespace gpuwire::nvidia_smi {

const char* const kHelp =
    "nvidia-smi of gpuwire: shows the devices that this machine's programs use over the network.\n"
    "\n"
    "nvidia-smi [OPTION [ARGUMENT]] ...\n"
    "\n"
    "    -h,   --help                Print this and exit.\n"
    "          --version             Print versions and exit.\n"
    "    -L,   --list-gpus           Display a list of GPUs.\n"
    "    -B,   --list-excluded-gpus  Display a list of excluded GPUs: there are none.\n"
    "    <no arguments>              Show a summary of GPUs.\n"
    "\n"
    "    -q,   --query               Display everything about the GPUs.\n"
    "    -x,   --xml-format          With -q: as XML.\n"
    "    -d,   --display=            With -q: only MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK, COMPUTE, PIDS, "
    "PERFORMANCE,\n"
    "                                PAGE_RETIREMENT, ENCODER_STATS, FBC_STATS, ROW_REMAPPER, GSP_FIRMWARE_VERSION; "
    "several with commas.\n"
    "\n"
    "          --query-gpu=          Chosen properties; --help-query-gpu lists them.\n"
    "          --query-compute-apps= Processes: pid, process_name, used_gpu_memory, gpu_name, gpu_uuid, gpu_bus_id, "
    "gpu_serial, timestamp.\n"
    "          --format=             With either: csv, and with commas noheader, nounits.\n"
    "\n"
    "    -i,   --id=                 Only these GPUs: index, UUID, PCI address or serial number; several with commas.\n"
    "    -f,   --filename=           Write to a file.\n"
    "    -l,   --loop=               Repeat every so many seconds.\n"
    "    -lms, --loop-ms=            Repeat every so many milliseconds.\n"
    "\n"
    "Options that change a GPU (-pm, -e, -p, -c, -r, -lgc, -rgc, -lmc, -rmc, -ac, -rac, -pl, -am, -caa, -mig, ...) are "
    "refused as for a user\n"
    "without permission. The commands of NVIDIA's own tool (dmon, pmon, topo, nvlink, ...) are not offered. Lists of "
    "processes are empty.\n"
    "\n"
    "Exit status: 0; 2 wrong usage; 4 no permission; 6 no such GPU; 9 no connection to a GPU server.\n";

namespace {

constexpr const char* kWrong = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n";
constexpr long kLoopDefaultSeconds = 5, kLoopSecondsMax = 86'400;

struct Option {
  const char* short_name;
  const char* long_name;
  enum Argument { none, needed, optional } argument;
  std::function<bool(Options&, const std::string&)> take;  // false: invalid argument
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin <= list.size();) {
    size_t end = std::min(list.find(',', begin), list.size());
    std::string word = list.substr(begin, end - begin);
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    found.push_back(word);
    begin = end + 1;
  }
  return found;
}

bool set_interval(Options& options, const std::string& text, long factor) {
  char* end = nullptr;
  long number = text.empty() ? kLoopDefaultSeconds : std::strtol(text.c_str(), &end, 10);
  if ((end && *end) || number <= 0 || number > kLoopSecondsMax * 1000 / factor) return false;
  options.interval_ms = number * factor;
  return true;
}

bool set_displays(Options& options, const std::string& text) {
  options.displays = words(text);
  return std::all_of(options.displays.begin(), options.displays.end(), display_exists);
}

auto task(Task task) {
  return [task](Options& options, const std::string&) {
    options.task = task;
    return true;
  };
}

auto query(Task task) {
  return [task](Options& options, const std::string& text) {
    options.task = task;
    options.properties = text;
    return !text.empty();
  };
}

const std::vector<Option>& all_options() {
  static const std::vector<Option> options = [] {
    std::vector<Option> list = {
        {"-h", "--help", Option::none, task(Task::help)},
        {nullptr, "--version", Option::none, task(Task::version)},
        {nullptr, "--help-query-gpu", Option::none, task(Task::help_properties)},
        {"-L", "--list-gpus", Option::none, task(Task::list)},
        {"-B", "--list-excluded-gpus", Option::none, task(Task::nothing_excluded)},
        {"-q", "--query", Option::none, task(Task::report)},
        {"-x", "--xml-format", Option::none, [](Options& o, const std::string&) { return o.xml = true; }},
        {"-d", "--display", Option::needed, set_displays},
        {"-i", "--id", Option::needed,
         [](Options& o, const std::string& text) {
           o.ids = text;
           return !text.empty();
         }},
        {"-f", "--filename", Option::needed,
         [](Options& o, const std::string& text) {
           o.file = text;
           return !text.empty();
         }},
        {"-l", "--loop", Option::optional,
         [](Options& o, const std::string& text) { return set_interval(o, text, 1000); }},
        {"-lms", "--loop-ms", Option::needed,
         [](Options& o, const std::string& text) { return set_interval(o, text, 1); }},
        {nullptr, "--query-gpu", Option::needed, query(Task::query_gpu)},
        {nullptr, "--query-compute-apps", Option::needed, query(Task::query_apps)},
        {nullptr, "--format", Option::needed,
         [](Options& o, const std::string& text) {
           o.format = text;
           return true;
         }},
    };
    constexpr struct {
      const char *short_name, *long_name;
      bool argument;
    } kChanges[] = {{"-pm", "--persistence-mode", true},
                    {"-e", "--ecc-config", true},
                    {"-p", "--reset-ecc-errors", true},
                    {"-c", "--compute-mode", true},
                    {nullptr, "--gom", true},
                    {"-r", "--gpu-reset", false},
                    {"-vm", "--virt-mode", true},
                    {"-lgc", "--lock-gpu-clocks", true},
                    {"-rgc", "--reset-gpu-clocks", false},
                    {"-lmc", "--lock-memory-clocks", true},
                    {"-rmc", "--reset-memory-clocks", false},
                    {"-ac", "--applications-clocks", true},
                    {"-rac", "--reset-applications-clocks", false},
                    {"-pl", "--power-limit", true},
                    {"-cc", "--cuda-clocks", true},
                    {"-am", "--accounting-mode", true},
                    {"-caa", "--clear-accounted-apps", false},
                    {nullptr, "--auto-boost-default", true},
                    {nullptr, "--auto-boost-permission", true},
                    {"-mig", "--multi-instance-gpu", true},
                    {"-gtt", "--gpu-target-temp", true},
                    {"-den", "--dram-encryption", true},
                    {nullptr, "--set-hostname", true}};
    for (const auto& change : kChanges)
      list.push_back({change.short_name, change.long_name, change.argument ? Option::needed : Option::none,
                      [name = change.long_name](Options& o, const std::string&) {
                        o.task = Task::change;
                        o.change = name;
                        return true;
                      }});
    return list;
  }();
  return options;
}

}  // namespace

std::string parse(int argc, char** argv, Options& options) {
  for (int at = 1; at < argc; ++at) {
    std::string word = argv[at], name = word.substr(0, word.find('='));
    bool has_value = name.size() < word.size();
    std::string value = has_value ? word.substr(name.size() + 1) : std::string();
    const auto& known = all_options();
    auto option = std::find_if(known.begin(), known.end(), [&](const Option& one) {
      return (one.short_name && name == one.short_name) || name == one.long_name;
    });
    if (option == known.end()) {
      if (word.starts_with("-")) return "ERROR: Option " + name + " is not recognized. Please run 'nvidia-smi -h'.\n\n";
      return "gpuwire's nvidia-smi does not offer \"" + word + "\"; 'nvidia-smi -h' lists what it does.\n";
    }
    if (option->argument == Option::none && has_value) return kWrong;
    bool next = at + 1 < argc && argv[at + 1][0] != '-';
    if (option->argument != Option::none && !has_value && next) value = argv[++at], has_value = true;
    if (option->argument == Option::needed && !has_value) return kWrong;
    if (!option->take(options, value)) return "Invalid argument: " + word + " " + value + "\n" + kWrong;
  }
  if (options.xml && options.task != Task::report)
    return "Invalid combination of input arguments. Specify -q/--query and -x/--xml-format to run an XML query.  "
           "Please run 'nvidia-smi -h' for help.\n\n";
  if ((options.xml || !options.displays.empty()) && options.task != Task::report) return kWrong;
  if (options.xml && !options.displays.empty()) return kWrong;
  return {};
}

bool parse_format(const std::string& text, Format& format) {
  bool csv = false;
  for (const std::string& word : words(text)) {
    if (word == "csv") csv = true;
    else if (word == "noheader") format.header = false;
    else if (word == "nounits") format.units = false;
    else return false;
  }
  return csv;
}

}  // namespace gpuwire::nvidia_smi
