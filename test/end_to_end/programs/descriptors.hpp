// Passes a file descriptor from one process to another over a socket, with the caller's bytes, or one byte.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

#include "driver_check.hpp"

struct DescriptorMessage {
  char byte = 'd';
  iovec data{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  DescriptorMessage(void* beside, size_t bytes) {
    data = beside ? iovec{beside, bytes} : iovec{&byte, 1};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
};

inline void send_descriptor(int socket, int descriptor, const void* beside = nullptr, size_t bytes = 0) {
  DescriptorMessage packed(const_cast<void*>(beside), bytes);
  cmsghdr* header = CMSG_FIRSTHDR(&packed.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  DEMAND(sendmsg(socket, &packed.message, 0) == ssize_t(packed.data.iov_len));
}

inline int receive_descriptor(int socket, void* beside = nullptr, size_t bytes = 0) {
  DescriptorMessage packed(beside, bytes);
  DEMAND(recvmsg(socket, &packed.message, MSG_WAITALL) == ssize_t(packed.data.iov_len));
  DEMAND(CMSG_FIRSTHDR(&packed.message) != nullptr);
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&packed.message)), sizeof descriptor);
  return descriptor;
}
