#include "server/management/management.hpp"

#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"
#include "server/management/replay_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

int Management::ask(uint32_t function, std::string_view arguments, std::string& values) const {
  auto functions = nvml::query_functions();
  // A newer client may know more queries.
  if (function >= functions.size() || !functions[function]) return nvml::kFunctionNotFound;
  nvml::Arguments in(arguments, library_.devices());
  nvml::Values out;
  int status = functions[function](library_.table(), in, out);
  if (out.all().size() > wire::kManagementValueBytesMax) return nvml::kUnknown;
  values = out.all();
  return status;
}

namespace management_calls {

void management_query(Replay& replay, Call& call) {
  auto query = call.message.getRoot<schema::ManagementQuery>();
  auto bytes = query.getArguments();
  if (bytes.size() > wire::kManagementArgumentBytesMax)
    throw ProtocolFault{"a management query with more arguments than allowed"};
  std::string values;
  int status = replay.management()->ask(query.getFunction(),
                                        {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}, values);
  capnp::MallocMessageBuilder message(uint(16 + values.size() / sizeof(capnp::word)));
  auto reply = message.initRoot<schema::ManagementReply>();
  reply.setStatus(status);
  reply.setValues(kj::arrayPtr(reinterpret_cast<const kj::byte*>(values.data()), values.size()));
  call.answered = true;
  replay.outbox().reply(call.header.sequence, message);
}

void ping(Replay& replay, Call& call) { finish(replay, call, CUDA_SUCCESS); }

}  // namespace management_calls

}  // namespace gpuwire::server
