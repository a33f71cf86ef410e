// Generated from protocol/api (`gives_work`, `gate_effect`): generated/server/gated_driver.cpp.
#pragma once

namespace gpuwire::server {

struct DriverTable;
class Gate;

// Replaces the functions that give work, and other functions that affect the gate, by functions that pass the gate and
// then call those of gate.driver(). Call it once in a process, before another thread uses the table.
void put_gate_before(DriverTable& table, Gate& gate);

}  // namespace gpuwire::server
