// The rows of `nvidia-smi -q`, in their order: one description for the text and the XML.
#pragma once

#include <span>

#include "client_stub/nvidia_smi/value.hpp"

namespace gpuwire::nvidia_smi {

struct Row {
  int depth;          // 1: of the device itself
  const char* label;  // in the text; null: not there
  const char* tag;    // in the XML; null: not there
  Getter get;         // null: a heading of the deeper rows behind it
};

std::span<const Row> report_rows();

}  // namespace gpuwire::nvidia_smi
