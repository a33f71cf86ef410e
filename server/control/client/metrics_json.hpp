// Snapshots as JSON, and back. The members carry the names of the fields.
#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

using Json = nlohmann::ordered_json;

Json to_json(const Snapshot& snapshot);
// Missing members keep their defaults and unknown ones are ignored, so that a command may be older or newer than its
// server. The error names the member of a wrong type.
tl::expected<Snapshot, std::string> snapshot_from_json(const Json& json);

// Returns the text in ASCII, with other characters of clients' names escaped.
std::string dump(const Json& json);

}  // namespace gpuwire::server
