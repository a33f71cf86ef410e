#include "protocol/threads/helper_threads.hpp"

#include <pthread.h>

#include <csignal>
#include <exception>

namespace gpuwire {

std::vector<std::thread> start_helper_threads(unsigned count, const std::function<void()>& body) noexcept {
  sigset_t masked, before;
  sigfillset(&masked);
  sigdelset(&masked, SIGSEGV);
  sigdelset(&masked, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &masked, &before);  // new threads inherit the mask
  std::vector<std::thread> threads;
  try {
    threads.reserve(count);
    while (threads.size() < count) threads.emplace_back(body);
  } catch (const std::exception&) {  // returns the threads that were created
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return threads;
}

}  // namespace gpuwire
