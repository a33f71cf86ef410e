#include "server/ipc/blocking_requests.hpp"

#include <utility>

namespace gpuwire::server::ipc {

void BlockingRequests::on_message(Answer answer) {
  {
    MutexLock lock(mutex_);
    Pending* waiter = pending_.find(answer.request);
    if (!waiter) return;  // too late: no thread waits any more
    **waiter = std::move(answer);
  }
  changed_.notify_all();
}

void BlockingRequests::broker_away() {
  {
    MutexLock lock(mutex_);
    wait_.away();
  }
  changed_.notify_all();
}

void BlockingRequests::broker_back() {
  {
    MutexLock lock(mutex_);
    wait_.back();
  }
  changed_.notify_all();
}

}  // namespace gpuwire::server::ipc
