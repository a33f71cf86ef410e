// The hand-written replay functions that stand in session_replay_table(), by ordinal of wire/ordinals.hpp. Copies: copies.hpp.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// launches.cpp
void launch(Replay& replay, Call& call);

// module_calls.cpp
void module_offer(Replay& replay, Call& call);
void module_data(Replay& replay, Call& call);
void module_load(Replay& replay, Call& call);
void module_unload(Replay& replay, Call& call);
// module_functions.cpp
void module_function(Replay& replay, Call& call);
void module_global(Replay& replay, Call& call);
void module_functions(Replay& replay, Call& call);

// watches.cpp
void watch_event(Replay& replay, Call& call);
void watch_stream(Replay& replay, Call& call);

// callbacks.cpp
void host_function(Replay& replay, Call& call);
void host_function_done(Replay& replay, Call& call);

// context_calls.cpp
void retain_primary(Replay& replay, Call& call);
void release_primary(Replay& replay, Call& call);
void reset_primary(Replay& replay, Call& call);

// green_contexts.cpp
void green_create(Replay& replay, Call& call);
void green_destroy(Replay& replay, Call& call);

// host_regions.cpp
void region_create(Replay& replay, Call& call);
void region_destroy(Replay& replay, Call& call);
void region_write(Replay& replay, Call& call);
void region_share(Replay& replay, Call& call);

// managed_memory.cpp
void managed_write(Replay& replay, Call& call);
void managed_read(Replay& replay, Call& call);
// graph_memory.cpp
void graph_memory_create(Replay& replay, Call& call);
void graph_memory_destroy(Replay& replay, Call& call);
void graph_memory_write(Replay& replay, Call& call);
void graph_launch(Replay& replay, Call& call);
// graph_nodes.cpp
void graph_node(Replay& replay, Call& call);
// graphs.cpp
void graph_forget(Replay& replay, Call& call);
void graph_text(Replay& replay, Call& call);
void capture_info(Replay& replay, Call& call);

// links.cpp
void link_create(Replay& replay, Call& call);
void link_add(Replay& replay, Call& call);
void link_complete(Replay& replay, Call& call);
void link_image(Replay& replay, Call& call);
void link_destroy(Replay& replay, Call& call);

// shares.cpp
void share_export(Replay& replay, Call& call);
void share_import(Replay& replay, Call& call);
void share_withdraw(Replay& replay, Call& call);
void import_pool_pointer(Replay& replay, Call& call);

}  // namespace gpuwire::server
