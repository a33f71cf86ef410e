#include "protocol/transport/unix.hpp"

#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "protocol/threads/helper_threads.hpp"
#include "protocol/transport/connecting.hpp"
#include "protocol/transport/stream.hpp"

namespace gpuwire::transport {

namespace {

constexpr int kUnixBacklog = 128;

tl::unexpected<std::string> failed(int error) { return tl::unexpected(std::system_category().message(error)); }

bool fill_address(const std::string& path, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return true;
}

}  // namespace

tl::expected<TransportPair, std::string> unix_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return failed(errno);
  TransportPair pair{adopt_stream(ends[0], "unix pair"), adopt_stream(ends[1], "unix pair")};
  if (pair.first && pair.second) return pair;
  if (!pair.first) close(ends[0]);
  if (!pair.second) close(ends[1]);
  return failed(EMFILE);
}

tl::expected<std::unique_ptr<Transport>, std::string> connect_unix(const std::string& path) {
  sockaddr_un address{};
  if (!fill_address(path, address)) return failed(ENAMETOOLONG);
  int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return failed(errno);
  if (connect_through_signals(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    if (auto transport = adopt_stream(socket, "unix:" + path)) return transport;
    errno = EMFILE;
  }
  int error = errno;
  close(socket);
  return failed(error);
}

tl::expected<std::unique_ptr<Transport>, std::string> connect_unix_in(int folder, const std::string& name) {
  tl::expected<std::unique_ptr<Transport>, std::string> connected = failed(EAGAIN);
  // A single thread may have a working directory of its own without any privilege, and no trace of it stays after the
  // thread's end.
  auto thread = start_helper_threads(1, [&] {
    if (unshare(CLONE_FS) != 0 || fchdir(folder) != 0) connected = failed(errno);
    else connected = connect_unix(name);
  });
  for (auto& one : thread) one.join();
  return connected;
}

tl::expected<int, std::string> listen_unix(const std::string& path) {
  sockaddr_un address{};
  if (!fill_address(path, address)) return failed(ENAMETOOLONG);
  int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return failed(errno);
  if (bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && listen(socket, kUnixBacklog) == 0)
    return socket;
  int error = errno;
  close(socket);
  return failed(error);
}

}  // namespace gpuwire::transport
