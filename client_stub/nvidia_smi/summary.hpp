// `nvidia-smi` without arguments: the table; and -L.
#pragma once

#include <string>
#include <vector>

#include "client_stub/nvidia_smi/library.hpp"

namespace gpuwire::nvidia_smi {

std::string summary(const Library& library, const std::vector<Card>& cards);
std::string list(const std::vector<Card>& cards);

}  // namespace gpuwire::nvidia_smi
