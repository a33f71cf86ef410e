// Steps another process of the program by instructions, to count a call's instructions or to stop it anywhere.
#pragma once

#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

// A stepped thread stops here until the stepper continues it.
inline void stop_here() { asm volatile("int3" ::: "memory"); }

struct Instruction {
  uint8_t bytes[16];

  size_t prefixes() const {
    size_t count = 0;
    while (count < 4 && (std::strchr("\xf0\xf2\xf3\x66\x2e\x3e\x64\x65", bytes[count]) && bytes[count])) ++count;
    return count;
  }
  bool has_prefix(uint8_t prefix) const { return std::find(bytes, bytes + prefixes(), prefix) != bytes + prefixes(); }
  // Behind the prefixes and REX.
  const uint8_t* code() const {
    const uint8_t* at = bytes + prefixes();
    return (*at & 0xf0) == 0x40 ? at + 1 : at;
  }
  bool is_trap() const { return bytes[0] == 0xcc; }
  bool is_system_call() const { return code()[0] == 0x0f && code()[1] == 0x05; }
  // Of memory, which locks the bus without a prefix.
  bool is_exchange() const { return (code()[0] == 0x86 || code()[0] == 0x87) && (code()[1] & 0xc0) != 0xc0; }
  bool is_point() const { return has_prefix(0xf0) || is_exchange() || is_system_call(); }
  // Repeats itself, and is stepped once for each time. 0: it does not.
  size_t repeats_bytes() const {
    const uint8_t code = *this->code();
    return has_prefix(0xf3) && ((code & 0xfe) == 0xa4 || (code & 0xfe) == 0xaa) ? size_t(this->code() + 1 - bytes) : 0;
  }
};

class Stepper {
 public:
  // A child that has asked to be traced (PTRACE_TRACEME) and comes to stop_here(). Other threads of it run freely.
  explicit Stepper(pid_t child) : child_(child) {}

  // Goes on to the next stop_here(). False: it has ended.
  bool go_on() {
    if (begun_ && ptrace(PTRACE_CONT, child_, nullptr, nullptr) != 0) return false;
    begun_ = true;
    return await_stop();
  }
  // One instruction, and a repeated one as a whole. False: the next stop_here() is reached, or the process has ended.
  bool step() {
    read();
    if (now_.is_trap()) return false;
    if (const size_t bytes = now_.repeats_bytes()) return run_to(at_ + bytes);
    return ptrace(PTRACE_SINGLESTEP, child_, nullptr, nullptr) == 0 && await_stop();
  }
  const Instruction& next() {
    read();
    return now_;
  }
  uint64_t at() const { return at_; }
  uint64_t stack() const { return uint64_t(ptrace(PTRACE_PEEKUSER, child_, offsetof(user_regs_struct, rsp), nullptr)); }
  uint64_t word(uint64_t address) const { return uint64_t(ptrace(PTRACE_PEEKDATA, child_, address, nullptr)); }
  void let_go(int signal) { ptrace(PTRACE_DETACH, child_, nullptr, signal); }

 private:
  bool await_stop() {
    int status = 0;
    if (waitpid(child_, &status, 0) != child_) return false;
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) return true;
    if (status != 0) std::printf("a process that is stepped: status %x\n", unsigned(status));
    return false;
  }
  void read() {
    at_ = uint64_t(ptrace(PTRACE_PEEKUSER, child_, offsetof(user_regs_struct, rip), nullptr));
    for (size_t i = 0; i < sizeof now_.bytes; i += sizeof(long)) {
      const long word = ptrace(PTRACE_PEEKTEXT, child_, at_ + i, nullptr);
      std::memcpy(now_.bytes + i, &word, sizeof word);
    }
  }
  bool run_to(uint64_t address) {
    const long before = ptrace(PTRACE_PEEKTEXT, child_, address, nullptr);
    ptrace(PTRACE_POKETEXT, child_, address, (before & ~0xffl) | 0xcc);
    ptrace(PTRACE_CONT, child_, nullptr, nullptr);
    const bool stopped = await_stop();
    ptrace(PTRACE_POKETEXT, child_, address, before);
    ptrace(PTRACE_POKEUSER, child_, offsetof(user_regs_struct, rip), address);
    return stopped;
  }

  const pid_t child_;
  bool begun_ = false;
  Instruction now_{};
  uint64_t at_ = 0;
};
