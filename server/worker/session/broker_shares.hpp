// The worker's side of objects that sessions share: sends requests to the broker and waits for the answers.
#pragma once

#include "server/ipc/blocking_requests.hpp"
#include "server/replay/memory/shares.hpp"

namespace gpuwire::server {

class BrokerShares final : public ShareExchange {
 public:
  // Both arguments outlive this object. `broker` is the target of `requests`.
  BrokerShares(ipc::Channel& broker, ipc::BlockingRequests& requests) : broker_(broker), requests_(requests) {}

  bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) override;
  int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) override;
  void withdraw(const ShareToken& token) override;

 private:
  ipc::Channel& broker_;
  ipc::BlockingRequests& requests_;
};

}  // namespace gpuwire::server
