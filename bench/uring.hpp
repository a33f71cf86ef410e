// Sending by io_uring(7), for the benchmarks: system calls as they are, because the library may not be there.
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/loopback_ends.hpp"

namespace gpuwire::bench {

// The way of sending: the kernel copies the bytes (IORING_OP_SEND), or reads them in place from registered pages
// (IORING_OP_SEND_ZC).
enum class UringSend : uint8_t { copied, zero_copy };

// One socket's sends, several under way and in their order (IOSQE_IO_LINK). One thread.
class Uring {
 public:
  // Sends that are submitted with one system call.
  static constexpr unsigned kChain = 8;

  // Nothing: the kernel, or this process's confinement, does not offer io_uring with such sends.
  static bool there() {
    io_uring_params parameters{};
    int ring = int(syscall(SYS_io_uring_setup, 2, &parameters));
    if (ring < 0) return false;
    std::vector<char> bytes(sizeof(io_uring_probe) + 256 * sizeof(io_uring_probe_op));
    auto* probe = reinterpret_cast<io_uring_probe*>(bytes.data());
    bool known = syscall(SYS_io_uring_register, ring, IORING_REGISTER_PROBE, probe, 256) == 0 &&
                 probe->last_op >= IORING_OP_SEND_ZC;
    close(ring);
    return known;
  }

  explicit Uring(std::vector<char>& memory) {
    io_uring_params parameters{};
    parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN;
    ring_ = int(syscall(SYS_io_uring_setup, kChain, &parameters));
    if (ring_ < 0) fail("io_uring_setup");
    // Both rings are in one mapping (IORING_FEAT_SINGLE_MMAP, since Linux 5.4).
    rings_bytes_ = std::max(parameters.sq_off.array + parameters.sq_entries * sizeof(uint32_t),
                            parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
    rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
    entries_bytes_ = parameters.sq_entries * sizeof(io_uring_sqe);
    entries_ = reinterpret_cast<io_uring_sqe*>(map(entries_bytes_, IORING_OFF_SQES));
    submission_tail_ = word(parameters.sq_off.tail);
    submission_mask_ = *word(parameters.sq_off.ring_mask);
    submissions_ = word(parameters.sq_off.array);
    completion_head_ = word(parameters.cq_off.head);
    completion_tail_ = word(parameters.cq_off.tail);
    completion_mask_ = *word(parameters.cq_off.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe*>(rings_ + parameters.cq_off.cqes);
    iovec whole{memory.data(), memory.size()};
    if (syscall(SYS_io_uring_register, ring_, IORING_REGISTER_BUFFERS, &whole, 1) != 0)
      fail("io_uring: memory cannot be registered (ulimit -l?)");
  }
  ~Uring() {
    munmap(entries_, entries_bytes_);
    munmap(rings_, rings_bytes_);
    close(ring_);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // Sends these pieces of the registered memory, one behind the other, and waits until the kernel needs them no more.
  void send(int socket, const std::vector<iovec>& pieces, UringSend how) {
    uint32_t tail = *submission_tail_;
    for (size_t i = 0; i < pieces.size(); ++i, ++tail) {
      io_uring_sqe& entry = entries_[tail & submission_mask_];
      std::memset(&entry, 0, sizeof entry);
      entry.opcode = how == UringSend::copied ? IORING_OP_SEND : IORING_OP_SEND_ZC;
      entry.fd = socket;
      entry.addr = reinterpret_cast<uint64_t>(pieces[i].iov_base);
      entry.len = uint32_t(pieces[i].iov_len);
      // The kernel goes on with what a send has left.
      entry.msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
      if (how == UringSend::zero_copy) entry.ioprio = IORING_RECVSEND_FIXED_BUF;
      if (i + 1 < pieces.size()) entry.flags = IOSQE_IO_LINK;
      entry.user_data = pieces[i].iov_len;
      submissions_[tail & submission_mask_] = tail & submission_mask_;
    }
    std::atomic_ref(*submission_tail_).store(tail, std::memory_order_release);
    unsigned submit = unsigned(pieces.size()), sends = submit, notices = 0;
    while (sends != 0 || notices != 0) {
      long entered = syscall(SYS_io_uring_enter, ring_, submit, 1, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (entered < 0 && errno != EINTR) fail("io_uring_enter");
      if (entered > 0) submit -= unsigned(entered);
      uint32_t head = *completion_head_;
      for (uint32_t end = std::atomic_ref(*completion_tail_).load(std::memory_order_acquire); head != end; ++head) {
        const io_uring_cqe& done = completions_[head & completion_mask_];
        if (done.flags & IORING_CQE_F_NOTIF) {
          --notices;
          continue;
        }
        if (done.res < 0 || uint64_t(done.res) != done.user_data)
          fail("io_uring: a send of " + std::to_string(done.user_data) + " bytes gave " + std::to_string(done.res));
        --sends;
        if (done.flags & IORING_CQE_F_MORE) ++notices;  // its memory is told of apart
      }
      std::atomic_ref(*completion_head_).store(head, std::memory_order_release);
    }
  }

 private:
  char* map(size_t bytes, uint64_t offset) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring_, off_t(offset));
    if (at == MAP_FAILED) fail("io_uring: mmap");
    return static_cast<char*>(at);
  }
  uint32_t* word(uint32_t offset) { return reinterpret_cast<uint32_t*>(rings_ + offset); }

  int ring_ = -1;
  char* rings_ = nullptr;
  size_t rings_bytes_ = 0, entries_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  uint32_t *submission_tail_ = nullptr, *submissions_ = nullptr, submission_mask_ = 0;
  uint32_t *completion_head_ = nullptr, *completion_tail_ = nullptr, completion_mask_ = 0;
  io_uring_cqe* completions_ = nullptr;
};

}  // namespace gpuwire::bench
