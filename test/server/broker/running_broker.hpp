// A broker in this process, with fake workers and a real login process beside it.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <spdlog/spdlog.h>

#include "server/broker/broker.hpp"
#include "test/server/worker/server_process.hpp"
#include "test/server/worker/wire_client.hpp"

namespace gpuwire::test {

// A broker on a thread of its own.
class RunningBroker {
 public:
  explicit RunningBroker(const std::string& worker_mode, unsigned prewarmed = 1, unsigned sessions_max = 8,
                         unsigned drain_seconds = 30) {
    server::Configuration configuration = server::open_configuration();
    configuration.sessions_max = sessions_max;
    begin({worker_mode}, prewarmed, drain_seconds, std::move(configuration));
  }
  RunningBroker(std::vector<std::string> worker_arguments, server::Configuration configuration, unsigned prewarmed) {
    begin(std::move(worker_arguments), prewarmed, 30, std::move(configuration));
  }
  // With as many prewarmed workers as `prewarmed` wants and `memory` has room for.
  RunningBroker(std::vector<std::string> worker_arguments, server::PrewarmedDemand::Limits prewarmed,
                server::PrewarmedMemory& memory) {
    prewarmed_max_ = prewarmed.most;
    prewarmed_memory_ = &memory;
    begin(std::move(worker_arguments), prewarmed.least, 30, server::open_configuration());
  }
  RunningBroker(const std::string& worker_mode, server::Configuration configuration) {
    begin({worker_mode}, 1, 30, std::move(configuration));
  }
  // `begin_limit`: the time within which a client has to begin its session.
  RunningBroker(std::vector<std::string> worker_arguments, server::Configuration configuration,
                std::chrono::milliseconds begin_limit) {
    begin_ms_ = uint32_t(begin_limit.count());
    begin(std::move(worker_arguments), 1, 30, std::move(configuration));
  }
  // `unix_path`: a second address.
  RunningBroker(unsigned devices, server::Configuration configuration, const std::string& unix_path = {},
                uint32_t begin_ms = server::kSessionBeginMs, const std::string& login = GPUWIRE_TEST_LOGIN) {
    begin_ms_ = begin_ms;
    login_ = login;
    begin({"serves", std::to_string(devices)}, 1, 30, std::move(configuration), unix_path);
  }
  // A broker that finds the entries of an earlier one in the folder.
  RunningBroker(unsigned devices, const std::filesystem::path& runtime_directory,
                server::Configuration configuration = server::open_configuration()) {
    keep_in(runtime_directory);
    begin({"serves", std::to_string(devices)}, 1, 30, std::move(configuration));
  }
  // The same, with workers that report the GPUs and may report others next time.
  RunningBroker(std::vector<std::string> worker_arguments, const std::filesystem::path& runtime_directory) {
    keep_in(runtime_directory);
    gpu_return_ms_ = server::kGpuReturnMs;
    begin(std::move(worker_arguments), 1, 30, server::open_configuration());
  }
  ~RunningBroker() {
    for (int i = 0; i < 2; ++i) shut_down();
    thread_.join();
  }

  uint16_t port() {
    eventually([&] { return port_ != 0 || ended_; });
    return port_;
  }
  bool ended() {
    return eventually([&] { return ended_.load(); });
  }
  void shut_down() {
    boost::asio::post(io_, [this] { broker_->shut_down(); });
  }
  // Runs `what` on the broker's thread, and returns when it is done.
  void act(const std::function<void(server::Broker&)>& what) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      what(*broker_);
      done.set_value();
    });
    done.get_future().wait();
  }
  const std::string& failure() const { return broker_->failure(); }
  const std::string& devices() const { return devices_; }

 private:
  void keep_in(const std::filesystem::path& runtime_directory) {
    auto keeping = server::Keeping::open(
        io_, {.directory = runtime_directory, .program = GPUWIRE_TEST_KEEPER, .grace = std::chrono::minutes(5)});
    REQUIRE(keeping);
    keeping_ = std::move(*keeping);
  }
  void begin(std::vector<std::string> worker_arguments, unsigned prewarmed, unsigned drain_seconds,
             server::Configuration configuration, const std::string& unix_path = {}) {
    spdlog::set_level(spdlog::level::off);
    std::vector<server::ListenAddress> listen{
        {boost::asio::ip::tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0), {}}};
    if (!unix_path.empty()) listen.push_back({std::nullopt, unix_path});
    broker_ = std::make_unique<server::Broker>(
        io_, server::BrokerOptions{.listen = listen,
                                   .worker = {GPUWIRE_TEST_FAKE_WORKER, std::move(worker_arguments)},
                                   .login_program = login_,
                                   .prewarmed_workers = prewarmed,
                                   .prewarmed_workers_max = prewarmed_max_,
                                   .drain_seconds = drain_seconds,
                                   .session_begin_ms = begin_ms_,
                                   .gpu_return_ms = gpu_return_ms_,
                                   .configuration = std::move(configuration),
                                   .keeping = keeping_.get()});
    if (prewarmed_memory_) broker_->workers().set_memory(*prewarmed_memory_);
    auto started = broker_->start([this](const std::vector<server::ListenAddress>& where, const std::string& devices) {
      devices_ = devices;
      port_ = where.front().tcp->port();
    });
    REQUIRE(started);
    thread_ = std::thread([this] {
      io_.run();
      ended_ = true;
    });
  }

  std::string login_ = GPUWIRE_TEST_LOGIN;
  unsigned prewarmed_max_ = 0;
  server::PrewarmedMemory* prewarmed_memory_ = nullptr;
  uint32_t begin_ms_ = server::kSessionBeginMs;
  uint32_t gpu_return_ms_ = 0;  // absent GPUs do not come back
  boost::asio::io_context io_{1};
  std::unique_ptr<server::Keeping> keeping_;
  std::unique_ptr<server::Broker> broker_;
  std::string devices_;  // written before port_
  std::atomic<uint16_t> port_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Logs the client in. Returns the process id of the fake worker that has it, or 0.
inline pid_t enter(WireClient& client, uint16_t port) {
  std::string text;
  pid_t pid = 0;
  if (!client.connect(port) || !client.log_in(text)) return 0;
  return client.read_exactly(std::as_writable_bytes(std::span(&pid, 1))) ? pid : 0;
}

}  // namespace gpuwire::test
