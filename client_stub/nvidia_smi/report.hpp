// `nvidia-smi -q`: everything about a device, as text or as XML.
#pragma once

#include <string>
#include <vector>

#include "client_stub/nvidia_smi/library.hpp"

namespace gpuwire::nvidia_smi {

// `sections` selects sections (by their first line's label in upper case, as in kDisplays); empty: all.
std::string report_text(const Library& library, const std::vector<Card>& cards,
                        const std::vector<std::string>& displays);
std::string report_xml(const Library& library, const std::vector<Card>& cards);
// Returns whether -d has this word.
bool display_exists(const std::string& display);

}  // namespace gpuwire::nvidia_smi
