#include "client_stub/driver/session/server_session.hpp"

namespace gpuwire::client {

CUresult ServerSession::connect(std::string_view server, std::string& error) {
  CUresult result = Session::connect(server, notices, connection_, error);
  if (connection_) chunked_uploads.begin(connection_->facts());
  return result;
}

// A session that broke off has told its parts already; they may be told twice.
void ServerSession::end() noexcept {
  connection_->close();
  parts_.tell_ended(SessionEnd::closed);
}

// First the threads that use the connection, then the connection, whose threads use the parts.
ServerSession::~ServerSession() {
  host_callbacks.stop();
  managed_memory.clear();
  connection_.reset();
}

}  // namespace gpuwire::client
