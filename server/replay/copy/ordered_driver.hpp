// Generated from protocol/api (`gives_work`): generated/server/ordered_driver.cpp.
#pragma once

namespace gpuwire::server {

struct DriverTable;
class UploadOrder;

// Replaces the functions that give work to a stream by wrappers that notify `before` and then call before.driver()'s
// function. Precondition: called once in a process, before another thread uses the table.
void put_upload_order_before(DriverTable& table, UploadOrder& before);

}  // namespace gpuwire::server
