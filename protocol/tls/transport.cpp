#include "protocol/tls/transport.hpp"

namespace gpuwire::tls {

namespace {

using transport::kReadable;

// Waiting, waking and the end are the stream's own.
class TlsTransport : public transport::Transport {
 public:
  TlsTransport(Transport& stream, TlsChannel& channel) : stream_(stream), channel_(channel) {}

  IoResult try_send(std::span<const iovec> pieces) noexcept override { return channel_.try_send(pieces); }
  IoResult try_receive(std::span<std::byte> out) noexcept override { return channel_.try_receive(out); }

  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override {
    if (!(interest & kReadable) || !channel_.pending()) return stream_.wait(interest, timeout);
    return kReadable | stream_.wait(interest & ~unsigned(kReadable), Nanoseconds(0));
  }

  void wake() noexcept override { stream_.wake(); }
  void finish() noexcept override {
    channel_.close_notify();
    stream_.finish();
  }
  void shutdown() noexcept override {
    channel_.close_notify();
    stream_.shutdown();
  }
  void stop_receiving() noexcept override { stream_.stop_receiving(); }
  // Without TLS's own end, which would be an orderly one.
  void reset() noexcept override { stream_.reset(); }
  bool peer_closed() noexcept override { return channel_.ended() || stream_.peer_closed(); }
  size_t unread() noexcept override { return stream_.unread(); }
  bool input() noexcept override { return channel_.pending() || stream_.input(); }
  std::string failure() const override { return channel_.failure(); }
  std::string binding() override { return channel_.binding(); }
  int descriptor() const noexcept override { return stream_.descriptor(); }
  // The channel's lock may be held by a thread that the child does not have; without its descriptor it can do no harm.
  void abandon_after_fork() noexcept override { stream_.abandon_after_fork(); }
  std::string peer() const override { return stream_.peer(); }
  const char* road() const noexcept override { return "tls"; }

 private:
  Transport& stream_;
  TlsChannel& channel_;
};

struct Owned {
  std::unique_ptr<transport::Transport> stream;
  std::unique_ptr<TlsChannel> channel;
};

class OwningTlsTransport final : Owned, public TlsTransport {
 public:
  explicit OwningTlsTransport(Owned owned) : Owned(std::move(owned)), TlsTransport(*stream, *channel) {}
};

}  // namespace

std::unique_ptr<transport::Transport> tls_transport(std::unique_ptr<transport::Transport> stream,
                                                    std::unique_ptr<TlsChannel> channel) {
  return std::make_unique<OwningTlsTransport>(Owned{std::move(stream), std::move(channel)});
}

std::unique_ptr<transport::Transport> tls_view(transport::Transport& stream, TlsChannel& channel) {
  return std::make_unique<TlsTransport>(stream, channel);
}

}  // namespace gpuwire::tls
