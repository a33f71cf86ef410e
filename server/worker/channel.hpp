// A session's connection as the worker uses it: a bare socket, or TLS over it.
#pragma once

#include <memory>
#include <string>

#include <sys/socket.h>
#include <sys/uio.h>

#include "protocol/tls/channel.hpp"
#include "server/worker/link_meter.hpp"

namespace gpuwire::server {

// One thread may send while another receives. Does not own the descriptor. A bare socket costs no more than the system call.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  Channel(int socket, std::unique_ptr<tls::TlsChannel> tls) : socket_(socket), tls_(std::move(tls)) {}

  int descriptor() const { return socket_; }
  // From now on what passes is counted: bytes as the session reads and writes them, before TLS. `counters` outlives the channel.
  void count_into(LinkCounters* counters) { meter_ = LinkMeter(socket_, counters); }
  void replied() { meter_.replied(); }  // under the same lock as send()

  // As recv() without waiting: bytes, 0 at the end, -1 with errno (EAGAIN: nothing just now).
  ssize_t receive(void* out, size_t size) {
    ssize_t got = !tls_ ? ::recv(socket_, out, size, MSG_DONTWAIT) : receive_tls(out, size);
    meter_.received(got);
    return got;
  }
  // May wait until `size` bytes are there, where the system can do that by itself; else as receive().
  ssize_t receive_bulk(void* out, size_t size) {
    ssize_t got = !tls_ ? ::recv(socket_, out, size, MSG_WAITALL) : receive_tls(out, size);
    meter_.received(got);
    return got;
  }
  // Is there more to receive than the descriptor shows? Asked before a poll.
  bool pending() const { return tls_ && tls_->pending(); }
  // Has the client sent more than was received? The end of the connection counts. Costs one system call at most.
  bool input() const;
  // As sendmsg() without waiting. After EAGAIN the next call has to begin with the same bytes.
  ssize_t send(iovec* parts, size_t count);

  // Nothing more will be sent; what was sent still arrives.
  void finish();
  // Not empty: TLS was broken, in one line.
  std::string failure() const { return tls_ ? tls_->failure() : std::string(); }

 private:
  ssize_t receive_tls(void* out, size_t size);
  ssize_t send_now(iovec* parts, size_t count);

  int socket_;
  LinkMeter meter_;
  std::unique_ptr<tls::TlsChannel> tls_;
};

}  // namespace gpuwire::server
