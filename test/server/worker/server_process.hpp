// A real gpuwire-serve with real workers, for tests.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::test {

// A server on a port chosen by the kernel; the destructor kills it and its workers.
class ServerProcess {
 public:
  // `arguments` follow `--listen`. Returns when the server reports that it listens, or has ended.
  explicit ServerProcess(std::vector<std::string> arguments, std::string listen = "127.0.0.1:0");
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  uint16_t port() const { return port_; }            // 0: not listening
  const std::string& line() const { return line_; }  // what it printed
  pid_t pid() const { return pid_; }
  // Returns its present worker processes.
  std::set<pid_t> workers() const;
  void signal(int number) const;
  // Waits for its end; returns the exit code, minus the signal's number, or -1000 if the deadline passed.
  int wait();
  // Returns its standard error so far.
  std::string log() const;
  // Waits until the log holds `text`; false: the deadline passed.
  bool log_gets(const std::string& text) const;

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
  std::string line_;
  server::OwnedDescriptor log_;  // a nameless file
};

// Returns true as soon as `condition` holds; false if kDeadline has passed.
template <class Condition>
bool eventually(Condition&& condition);

// Whether the process exists and is no zombie.
bool process_exists(pid_t pid);

// The steps and the deadline of eventually().
void pause_briefly();
bool deadline_passed(uint64_t started_ms);
uint64_t now_ms();

template <class Condition>
bool eventually(Condition&& condition) {
  for (uint64_t started = now_ms(); !condition(); pause_briefly()) {
    if (deadline_passed(started)) return false;
  }
  return true;
}

}  // namespace gpuwire::test
