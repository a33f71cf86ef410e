#include "server/worker/session/broker_shares.hpp"

#include <chrono>
#include <optional>

#include <fcntl.h>

#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {
namespace {

constexpr std::chrono::milliseconds kAnswer{kShareAnswerMs};

}  // namespace

bool BrokerShares::publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) {
  auto answer = requests_.ask(kAnswer, [&](ipc::RequestId request) -> std::optional<ipc::Message> {
    OwnedDescriptor copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!copy) return std::nullopt;
    return ipc::Share{request, token, uint32_t(kind), tenant, std::move(copy)};
  });
  return answer && answer->yes;
}

int BrokerShares::claim(const ShareToken& token, ShareKind kind, const std::string& tenant) {
  auto answer = requests_.ask(kAnswer, [&](ipc::RequestId request) {
    return ipc::Claim{request, token, uint32_t(kind), tenant};
  });
  return answer && answer->yes ? answer->descriptor.release() : -1;
}

// An unanswered request ends with the session.
void BrokerShares::withdraw(const ShareToken& token) { broker_.send(ipc::Withdraw{token}); }

}  // namespace gpuwire::server
