#include "protocol/tls/transport.hpp"

#include <cerrno>

namespace gpuwire::tls {

namespace {

using transport::kReadable;

// The stream itself waits, wakes and shuts down.
class TlsTransport : public transport::Transport {
 public:
  TlsTransport(Transport& stream, TlsChannel& channel) : stream_(stream), channel_(channel) {}

  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    return is_ours() ? channel_.try_send(pieces) : IoResult{IoStatus::failed, 0, EBADF};
  }
  IoResult try_receive(std::span<std::byte> out) noexcept override {
    return is_ours() ? channel_.try_receive(out) : IoResult{IoStatus::failed, 0, EBADF};
  }

  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override {
    if (!(interest & kReadable) || !channel_.pending()) return stream_.wait(interest, timeout);
    return kReadable | stream_.wait(interest & ~unsigned(kReadable), Nanoseconds(0));
  }

  void wake() noexcept override { stream_.wake(); }
  void finish() noexcept override {
    if (is_ours()) channel_.close_notify();
    stream_.finish();
  }
  void shutdown() noexcept override {
    if (is_ours()) channel_.close_notify();
    stream_.shutdown();
  }
  void stop_receiving() noexcept override { stream_.stop_receiving(); }
  // Sends no close_notify, which would be an orderly end.
  void reset() noexcept override { stream_.reset(); }
  bool peer_closed() noexcept override { return channel_.ended() || stream_.peer_closed(); }
  size_t unread() noexcept override { return stream_.unread(); }
  bool input() noexcept override { return channel_.pending() || stream_.input(); }
  std::string failure() const override { return channel_.failure(); }
  std::string binding() override { return channel_.binding(); }
  int descriptor() const noexcept override { return stream_.descriptor(); }
  bool is_ours() noexcept override { return stream_.is_ours(); }
  // A thread that does not exist in the child may have held the channel's lock. Without a descriptor the channel does
  // no harm.
  void abandon_after_fork() noexcept override { stream_.abandon_after_fork(); }
  std::string peer() const override { return stream_.peer(); }
  const char* road() const noexcept override { return "tls"; }
  bool take_back_from_left_call(bool sending, bool receiving) noexcept override {
    return !channel_.take_back_from_left_call() && stream_.take_back_from_left_call(sending, receiving);
  }
  bool is_inside() noexcept override { return channel_.is_inside() || stream_.is_inside(); }
  bool can_be_left() const noexcept override { return stream_.can_be_left(); }

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
