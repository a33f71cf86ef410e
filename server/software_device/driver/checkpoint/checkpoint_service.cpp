#include "server/software_device/driver/checkpoint/checkpoint_service.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "server/software_device/driver/checkpoint/process_checkpoint.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint32_t kRequestMagic = 0x43707767;  // "gwpC"

struct Request {
  uint32_t magic = kRequestMagic;
  CheckpointStep step{};
  uint32_t timeout_ms = 0;
};
struct Reply {
  int32_t result = CUDA_ERROR_UNKNOWN;
  uint32_t value = 0;
};

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address_of(int pid) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::string name = "gpuwire-software-device/checkpoint/" + std::to_string(pid);
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  const int number_;
};

union Control {
  cmsghdr aligned;
  char bytes[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))];
};

struct Heard {
  Request request;
  bool permitted = false;
  int reply_to = -1;
};

void read_control(msghdr& message, Heard& heard) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_CREDENTIALS && part->cmsg_len == CMSG_LEN(sizeof(ucred))) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(part), sizeof who);
      heard.permitted = who.uid == 0 || who.uid == geteuid();
    }
    if (part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof descriptor);
      if (heard.reply_to < 0) heard.reply_to = descriptor;
      else close(descriptor);
    }
  }
}

// Returns nothing if the message was not a request.
std::optional<Heard> next_request(int socket) {
  Heard heard;
  iovec words{&heard.request, sizeof heard.request};
  Control control{};
  msghdr message{};
  message.msg_iov = &words;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  const ssize_t bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return std::nullopt;
  read_control(message, heard);
  if (heard.reply_to < 0) return std::nullopt;
  if (bytes != sizeof heard.request || (message.msg_flags & MSG_TRUNC) != 0 || heard.request.magic != kRequestMagic) {
    close(heard.reply_to);
    return std::nullopt;
  }
  return heard;
}

Reply carry_out_request(ProcessCheckpoint& process, const Heard& heard) {
  if (!heard.permitted) return {CUDA_ERROR_NOT_PERMITTED, 0};
  switch (heard.request.step) {
    case CheckpointStep::get_state: return {CUDA_SUCCESS, static_cast<uint32_t>(process.state())};
    case CheckpointStep::get_thread: return {CUDA_SUCCESS, static_cast<uint32_t>(syscall(SYS_gettid))};
    case CheckpointStep::lock: return {process.lock(heard.request.timeout_ms), 0};
    case CheckpointStep::checkpoint: return {process.checkpoint(), 0};
    case CheckpointStep::restore: return {process.restore(), 0};
    case CheckpointStep::unlock: return {process.unlock(), 0};
  }
  return {CUDA_ERROR_INVALID_VALUE, 0};
}

[[noreturn]] void serve(int socket, ProcessCheckpoint& process) {
  for (;;) {
    const std::optional<Heard> heard = next_request(socket);
    if (!heard) continue;
    const Descriptor reply_to(heard->reply_to);
    const Reply reply = carry_out_request(process, *heard);
    send(reply_to.get(), &reply, sizeof reply, MSG_NOSIGNAL | MSG_DONTWAIT);  // the process that asked may have ended
  }
}

bool exists(int pid) { return access(("/proc/" + std::to_string(pid)).c_str(), F_OK) == 0; }

bool send_request(int pid, const Request& request, int reply_from) {
  const Descriptor socket_to(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address address = address_of(pid);
  iovec words{const_cast<Request*>(&request), sizeof request};
  Control control{};
  msghdr message{};
  message.msg_name = &address.name;
  message.msg_namelen = address.bytes;
  message.msg_iov = &words;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &reply_from, sizeof reply_from);
  ssize_t sent = -1;
  do sent = sendmsg(socket_to.get(), &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof request);
}

}  // namespace

void serve_checkpoints(ProcessCheckpoint& process) {
  const int listens = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const Address address = address_of(getpid());
  if (listens < 0 || setsockopt(listens, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0 ||
      bind(listens, reinterpret_cast<const sockaddr*>(&address.name), address.bytes) != 0) {
    if (listens >= 0) close(listens);
    return;
  }
  // The thread blocks all signals, which are for the program's threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([listens, &process] { serve(listens, process); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

tl::expected<uint32_t, CUresult> ask_process(int pid, CheckpointStep step, unsigned timeout_ms) {
  if (pid <= 0) return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  int pair[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return tl::unexpected(CUDA_ERROR_OPERATING_SYSTEM);
  const Descriptor answers(pair[0]);
  {
    const Descriptor theirs(pair[1]);  // closed here, so that the end of the other process is an end of file
    if (!send_request(pid, {.step = step, .timeout_ms = timeout_ms}, theirs.get()))
      return tl::unexpected(exists(pid) ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE);
  }
  Reply reply;
  ssize_t bytes = -1;
  do bytes = recv(answers.get(), &reply, sizeof reply, 0);
  while (bytes < 0 && errno == EINTR);
  if (bytes != static_cast<ssize_t>(sizeof reply)) return tl::unexpected(CUDA_ERROR_OPERATING_SYSTEM);
  if (reply.result != CUDA_SUCCESS) return tl::unexpected(static_cast<CUresult>(reply.result));
  return reply.value;
}

}  // namespace gpuwire::software_device
