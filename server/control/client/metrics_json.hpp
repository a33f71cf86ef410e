// Snapshots as JSON, and back. The members carry the names of the fields.
#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include "server/control/client/metrics.hpp"

namespace gpuwire::server {

using Json = nlohmann::ordered_json;

Json to_json(const Snapshot& snapshot);
// What is missing keeps its default and what is unknown is left out, so that a command may be older or newer than its
// server. The error says what has the wrong type.
tl::expected<Snapshot, std::string> snapshot_from_json(const Json& json);

// In ASCII, whatever clients have chosen as their names.
std::string dump(const Json& json);

}  // namespace gpuwire::server
