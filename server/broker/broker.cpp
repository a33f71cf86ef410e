#include "server/broker/broker.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/preface.hpp"
#include "server/broker/limits.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string text_of(const tcp::endpoint& endpoint) {
  std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port()) : fmt::format("{}:{}", address, endpoint.port());
}

AdmissionLimits limits_of(const Configuration& configuration) {
  return {.sessions_max = configuration.sessions_max,
          .sessions_per_gpu_max = configuration.sessions_per_gpu_max,
          .gpus = {configuration.gpus.begin(), configuration.gpus.end()}};
}

}  // namespace

// Reads the preface, or says why not and lingers until the client has read it. Everything within one time limit.
class Broker::Visitor : public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(Broker& broker, tcp::socket socket, std::string peer)
      : broker_(broker), socket_(std::move(socket)), timer_(broker.io_), peer_(std::move(peer)) {}

  const std::string& peer() const { return peer_; }
  int release_socket() {
    timer_.cancel();
    error_code error;
    socket_.native_non_blocking(false, error);
    return socket_.release(error);
  }
  void abort() {
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

  void read_preface() {
    limit(wire::kHandshakeTimeoutMs);
    read_more();
  }

  void refuse(wire::RefusalCode code, std::string reason) {
    spdlog::warn("refused {}: {}", peer_, reason);
    wire::Preface preface = wire::refusing_preface(code, reason);
    wire::PrefaceBytes bytes = wire::encode(preface);
    answer_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    answer_ += reason;
    limit(kRefusalLingerMs);
    asio::async_write(socket_, asio::buffer(answer_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->broker_.leave(*self);
      error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
      self->linger();
    });
  }

  // Until release_socket() or refuse(): `gone` is called when the client has closed its end.
  void await_admission(std::function<void()> gone) {
    timer_.cancel();
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this(), gone = std::move(gone)](error_code error) {
      char byte;
      if (error || ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return;  // what it says already is for the worker
      gone();
      self->broker_.leave(*self);
    });
  }

 private:
  void limit(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      if (self->answer_.empty()) spdlog::warn("dropped {}: {} bytes of a preface within {} ms", self->peer_, self->received_, wire::kHandshakeTimeoutMs);
      error_code ignored;
      self->socket_.cancel(ignored);  // the pending read or write fails, and the visitor leaves
    });
  }

  void read_more() {
    auto rest = asio::buffer(bytes_.data() + received_, bytes_.size() - received_);
    socket_.async_read_some(rest, [self = shared_from_this()](error_code error, size_t got) {
      if (error) return self->broker_.leave(*self);
      self->received_ += got;
      self->look();
    });
  }

  void look() {
    // Whoever speaks another protocol may say little and then wait for an answer.
    wire::Preface ours;
    bool stranger = std::memcmp(bytes_.data(), ours.magic, std::min(received_, sizeof ours.magic)) != 0;
    if (received_ < bytes_.size() && !stranger) return read_more();
    std::string reason;
    wire::RefusalCode code = wire::check_client(bytes_, reason);
    if (code != wire::RefusalCode::accepted) return refuse(code, reason);
    wire::Preface preface = wire::decode(bytes_);
    if (std::any_of(std::begin(preface.session_id), std::end(preface.session_id), [](uint8_t byte) { return byte != 0; }))
      return refuse(wire::RefusalCode::internal, "this server keeps no sessions that could be resumed");
    broker_.admit(shared_from_this(), preface.flags);
  }

  void linger() {
    socket_.async_read_some(asio::buffer(bytes_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->broker_.leave(*self);
      self->linger();
    });
  }

  Broker& broker_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::string peer_;
  wire::PrefaceBytes bytes_{};
  size_t received_ = 0;
  std::string answer_;
};

Broker::Broker(asio::io_context& io, BrokerOptions options)
    : io_(io),
      options_(std::move(options)),
      acceptor_(io),
      signals_(io),
      accept_timer_(io),
      drain_timer_(io),
      queue_timer_(io),
      tenants_(options_.configuration.tenants),
      admission_(book_, tenants_, limits_of(options_.configuration), [this](scheduler::SessionId session) { sessions_.prepare(session); }),
      sessions_(book_, admission_, [this](const SessionRecord& session) -> WorkerPool& { return pools_.of(session); }),
      pools_(io, options_.worker, options_.spare_workers, pool_events()) {
  book_.observe([this](const SessionEvent& event) {
    if (event.kind == SessionEvent::Kind::queued) look_at_queue();
    // After the book has forgotten it.
    if (event.kind == SessionEvent::Kind::ended || event.kind == SessionEvent::Kind::refused) asio::post(io_, [this] { end_if_idle(); });
  });
}

// Sessions that end are heard of; memory that a session frees while it goes on is not.
void Broker::look_at_queue() {
  if (std::exchange(looking_, true)) return;
  queue_timer_.expires_after(std::chrono::milliseconds(kQueueLookMs));
  queue_timer_.async_wait([this](error_code error) {
    looking_ = false;
    if (error) return;
    admission_.reconsider();
    if (admission_.anybody_waits()) look_at_queue();
  });
}

WorkerPool::Events Broker::pool_events() {
  WorkerPool::Events events = sessions_.pool_events();
  events.ready = [this](const Handoff& message) { worker_is_ready(message); };
  events.hopeless = [this](const std::string& reason) {
    if (accepting_) return;  // the next client is reason for another attempt
    failure_ = reason;
    shut_down();
  };
  return events;
}

Broker::~Broker() = default;

tl::expected<void, std::string> Broker::start(Listening listening) {
  listening_ = std::move(listening);
  try {
    acceptor_.open(options_.listen.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(options_.listen);
    acceptor_.listen();
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
  } catch (const boost::system::system_error& error) {
    return tl::unexpected(fmt::format("cannot listen on {}: {}", text_of(options_.listen), error.code().message()));
  }
  await_signals();
  pools_.start();
  return {};
}

void Broker::worker_is_ready(const Handoff& message) {
  if (accepting_ || draining_) return;
  auto inventory = decode_inventory(message.text);
  if (!inventory) {
    failure_ = "a worker tells of its devices what cannot be read: " + inventory.error();
    return shut_down();
  }
  devices_ = inventory->devices;
  if (ConfigurationErrors errors = misfits(options_.configuration); !errors.empty()) {
    failure_ = fmt::format("the configuration does not fit the devices: {}", fmt::join(errors, "; "));
    return shut_down();
  }
  accepting_ = true;
  admission_.devices_known(devices_);
  sessions_.devices_known(devices_, tenants_);
  pools_.keep_ready(sets_kept_ready(), devices_.size());
  listening_(acceptor_.local_endpoint(), inventory->summary);
  accept();
}

// --- clients ----------------------------------------------------------------------------------------------------------------------------------

void Broker::accept() {
  if (draining_) return;
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      visit(std::move(socket));
      return accept();
    }
    // Out of descriptors, most likely: the connection stays in the kernel's queue, and trying again at once would only burn a core.
    spdlog::warn("accept: {}", error.message());
    accept_timer_.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
    accept_timer_.async_wait([this](error_code stopped) {
      if (!stopped) accept();
    });
  });
}

// A client sends its preface at once, so whoever has been silent longest is the one to go: a flood of silent connections keeps nobody out.
void Broker::make_room() {
  if (visitors_.size() < kHalfOpenMax) return;
  spdlog::debug("dropped {}: {} connections without a preface", visitors_.front()->peer(), visitors_.size());
  visitors_.front()->abort();
  visitors_.pop_front();
}

void Broker::visit(tcp::socket socket) {
  error_code error;
  tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // it left at once
  make_room();
  auto visitor = std::make_shared<Visitor>(*this, std::move(socket), text_of(peer));
  visitors_.push_back(visitor);
  visitor->read_preface();
}

void Broker::admit(const std::shared_ptr<Visitor>& visitor, uint32_t preface_flags) {
  visitors_.remove(visitor);
  waiting_.insert(visitor);
  LoginRequest request{.tenant = kOpenTenant, .peer = visitor->peer(), .security = "plain", .management = (preface_flags & wire::kPrefaceManagement) != 0};
  auto session = admission_.request(std::move(request), [this, visitor](scheduler::SessionId number, const AdmissionAnswer& answer) {
    if (std::holds_alternative<AdmissionQueued>(answer)) return;
    waiting_.erase(visitor);
    if (auto* refused = std::get_if<AdmissionRefused>(&answer)) {
      visitors_.push_back(visitor);
      visitor->refuse(refused->code, refused->reason);
    } else {
      sessions_.serve(number, OwnedDescriptor(visitor->release_socket()), {});
    }
  });
  if (waiting_.count(visitor)) visitor->await_admission([this, session] { sessions_.cancel(session, "the client left while it waited"); });
}

// The sets that the tenants' usual sessions get: one GPU each, or all. Other numbers of GPUs are rare and their sets many.
std::vector<DeviceSet> Broker::sets_kept_ready() const {
  bool single = false, all = false;
  for (const Tenant& tenant : tenants_.all()) {
    if (!tenant.known) continue;
    size_t gpus = admission_.usual_gpus(tenant);
    single |= gpus == 1;
    all |= gpus == devices_.size();
  }
  std::vector<DeviceSet> sets;
  if (all) sets.push_back({});
  for (const ServerDevice& device : devices_) {
    if (single && devices_.size() > 1) sets.push_back({device.index});
  }
  return sets;
}

ConfigurationErrors Broker::misfits(const Configuration& configuration) const {
  std::vector<uint64_t> bytes;
  for (const ServerDevice& device : devices_) bytes.push_back(device.bytes);
  return check_devices(configuration, bytes);
}

tl::expected<void, ConfigurationErrors> Broker::reload(Configuration configuration) {
  if (!accepting_) return tl::unexpected(ConfigurationErrors{"the server is not ready yet"});
  if (ConfigurationErrors errors = misfits(configuration); !errors.empty()) return tl::unexpected(std::move(errors));
  tenants_.replace(std::move(configuration.tenants));
  sessions_.tenants_changed(tenants_);
  admission_.reload(limits_of(configuration));
  pools_.keep_ready(sets_kept_ready(), devices_.size());
  return {};
}

void Broker::leave(Visitor& visitor) {
  visitor.abort();
  auto kept = visitor.shared_from_this();
  visitors_.remove(kept);
  waiting_.erase(kept);
  end_if_idle();
}

// --- the end ----------------------------------------------------------------------------------------------------------------------------------

void Broker::await_signals() {
  signals_.async_wait([this](error_code error, int) {
    if (error) return;
    shut_down();
    await_signals();
  });
}

void Broker::shut_down() {
  if (!draining_) {
    draining_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    admission_.close(wire::RefusalCode::shutting_down, "the server is shutting down");
    pools_.close("the server is shutting down");
    if (size_t running = book_.all().size()) {
      spdlog::info("shutting down: {} running sessions have {} s to end; a second signal ends them now", running, options_.drain_seconds);
      drain_timer_.expires_after(std::chrono::seconds(options_.drain_seconds));
      drain_timer_.async_wait([this](error_code error) {
        if (!error) shut_down();
      });
    }
  } else if (!stopping_) {
    stopping_ = true;
    spdlog::info("ending {} sessions", book_.all().size());
    sessions_.stop_all("the server is shutting down");
  }
  end_if_idle();
}

void Broker::end_if_idle() {
  if (!draining_ || !book_.all().empty() || (!visitors_.empty() && !stopping_)) return;
  drain_timer_.cancel();
  signals_.cancel();
  io_.stop();
}

}  // namespace gpuwire::server
