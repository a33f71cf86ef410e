// Generated from protocol/api (`gives_work`): generated/server/ordered_driver.cpp.
#pragma once

namespace gpuwire::server {

struct DriverTable;
class UploadOrder;

// Replaces the functions that give work to a stream by ones that say so to `before` and then call before.driver()'s.
// Once in a process, before the table is used by another thread.
void put_upload_order_before(DriverTable& table, UploadOrder& before);

}  // namespace gpuwire::server
