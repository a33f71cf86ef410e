// The command line of this nvidia-smi: the querying part of NVIDIA's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client_stub/nvidia_smi/query.hpp"

namespace gpuwire::nvidia_smi {

enum class Task {
  summary,
  list,
  report,
  query_gpu,
  query_apps,
  help,
  help_properties,
  version,
  change,
  nothing_excluded
};

struct Options {
  Task task = Task::summary;
  // -i; empty: all.
  std::string ids;
  // -f; empty: standard output.
  std::string file;
  // -x.
  bool xml = false;
  // -d.
  std::vector<std::string> displays;
  // The value of --query-gpu or --query-compute-apps.
  std::string properties;
  // --format.
  std::optional<std::string> format;
  // The option that would change the card.
  std::string change;
  // -l, -lms; 0: once.
  long interval_ms = 0;
};

// Returns the error for standard output, or an empty text.
std::string parse(int argc, char** argv, Options& options);
// Returns false if the format is not csv, or has an unknown word.
bool parse_format(const std::string& text, Format& format);
extern const char* const kHelp;

}  // namespace gpuwire::nvidia_smi
