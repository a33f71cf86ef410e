// The rows of `nvidia-smi -q`, in their order: one description for the text and the XML.
#pragma once

#include <span>

#include "client_stub/nvidia_smi/value.hpp"

namespace gpuwire::nvidia_smi {

struct Row {
  // 1: of the device itself.
  int depth;
  // In the text; null: not there.
  const char* label;
  // In the XML; null: not there.
  const char* tag;
  // Null: a heading of the deeper rows behind it.
  Getter get;
};

std::span<const Row> report_rows();

}  // namespace gpuwire::nvidia_smi
