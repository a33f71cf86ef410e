// Generated from protocol/api (`gives_work`, `gate_effect`): generated/server/gated_driver.cpp.
#pragma once

namespace gpuwire::server {

struct DriverTable;
class Gate;

// Replaces the functions that give work, or that the gate has to know of, by ones that ask the gate and then call
// gate.driver()'s. Once in a process, before the table is used by another thread.
void put_gate_before(DriverTable& table, Gate& gate);

}  // namespace gpuwire::server
