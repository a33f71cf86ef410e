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
  std::string ids;                    // -i; empty: all
  std::string file;                   // -f; empty: standard output
  bool xml = false;                   // -x
  std::vector<std::string> displays;  // -d
  std::string properties;             // of --query-gpu or --query-compute-apps
  std::optional<std::string> format;  // --format
  std::string change;                 // the option that would change the card
  long interval_ms = 0;               // -l, -lms; 0: once
};

// Returns the error for standard output, or an empty text.
std::string parse(int argc, char** argv, Options& options);
// Returns false if the format is not csv, or has an unknown word.
bool parse_format(const std::string& text, Format& format);
extern const char* const kHelp;

}  // namespace gpuwire::nvidia_smi
