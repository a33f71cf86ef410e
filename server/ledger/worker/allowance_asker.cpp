#include "server/ledger/worker/allowance_asker.hpp"

#include <chrono>

namespace gpuwire::server {

bool AllowanceAsker::ask(uint32_t column, uint64_t bytes, bool ahead) {
  auto answer = requests_.ask(std::chrono::milliseconds(kAllowanceAnswerMs), [&](ipc::RequestId request) {
    return ipc::MemoryWanted{request, column, bytes, ahead};
  });
  if (!answer) broker_.send(ipc::Note{"a question about memory: " + answer.error()});
  return answer && answer->yes;
}

}  // namespace gpuwire::server
