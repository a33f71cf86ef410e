// Handlers that lowering itself, or more than one family, emits.
#pragma once

#include "server/software_device/execution/op.hpp"

namespace gpuwire::software_device {

void handle_return(Warp& warp, const Op& op, uint32_t mask);
void handle_predicate_not(Warp& warp, const Op& op, uint32_t mask);
void handle_clock32(Warp& warp, const Op& op, uint32_t mask);
void handle_clock64(Warp& warp, const Op& op, uint32_t mask);
void handle_local_address32(Warp& warp, const Op& op, uint32_t mask);
void handle_local_address64(Warp& warp, const Op& op, uint32_t mask);
void handle_symbol_address32(Warp& warp, const Op& op, uint32_t mask);
void handle_symbol_address64(Warp& warp, const Op& op, uint32_t mask);

// d = a + immediate, 8 bytes.
Handler add_window_handler();

// Joins two registers of 2 bytes to one of 4, low half first; and takes the high half of a register of 4 bytes.
Handler join_halves_handler();
Handler high_half_handler();

// Copies one value per lane, of 1, 2, 4 or 8 bytes.
Handler move_handler(uint32_t bytes);
// Zero- or sign-extends (or truncates) from one register width to another.
Handler resize_handler(uint32_t from_bytes, uint32_t to_bytes, bool sign);

// Returns true if control never reaches the next op when the guard is true for all lanes.
bool handles_jump_without_return(Handler handler);
bool handles_table_branch(Handler handler);

}  // namespace gpuwire::software_device
