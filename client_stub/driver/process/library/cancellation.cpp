// The C library cancels a thread at these functions (pthreads(7)). The linker redirects the library's uses of the
// functions in cancellation_points.txt to these wrappers (--wrap), including uses by static libraries. A thread inside
// a call is not cancelled there: CallFrame.
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdio>
#include <ctime>

#include "client_stub/driver/process/call_frame.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
#define GPUWIRE_CANCELLATION_POINT(type, name, parameters, arguments)       \
  extern "C" type __real_##name parameters;                                 \
  extern "C" type __wrap_##name parameters {                                \
    if (auto* frame = gpuwire::client::t_frame) frame->hold_cancellation(); \
    return __real_##name arguments;                                         \
  }

using Directory = struct __dirstream;
struct dirent;

GPUWIRE_CANCELLATION_POINT(int, accept, (int socket, void* address, void* bytes), (socket, address, bytes))
GPUWIRE_CANCELLATION_POINT(int, accept4, (int socket, void* address, void* bytes, int flags),
                           (socket, address, bytes, flags))
GPUWIRE_CANCELLATION_POINT(int, clock_nanosleep, (clockid_t clock, int flags, const timespec* time, timespec* left),
                           (clock, flags, time, left))
GPUWIRE_CANCELLATION_POINT(int, close, (int descriptor), (descriptor))
GPUWIRE_CANCELLATION_POINT(int, connect, (int socket, const void* address, socklen_t bytes), (socket, address, bytes))
GPUWIRE_CANCELLATION_POINT(int, epoll_wait, (int descriptor, epoll_event* events, int most, int timeout_ms),
                           (descriptor, events, most, timeout_ms))
GPUWIRE_CANCELLATION_POINT(int, fallocate, (int descriptor, int mode, off_t offset, off_t bytes),
                           (descriptor, mode, offset, bytes))
GPUWIRE_CANCELLATION_POINT(int, fclose, (FILE * file), (file))
GPUWIRE_CANCELLATION_POINT(int, fflush, (FILE * file), (file))
GPUWIRE_CANCELLATION_POINT(char*, fgets, (char* text, int bytes, FILE* file), (text, bytes, file))
GPUWIRE_CANCELLATION_POINT(FILE*, fopen, (const char* path, const char* mode), (path, mode))
GPUWIRE_CANCELLATION_POINT(FILE*, fopen64, (const char* path, const char* mode), (path, mode))
GPUWIRE_CANCELLATION_POINT(int, fputs, (const char* text, FILE* file), (text, file))
GPUWIRE_CANCELLATION_POINT(size_t, fread, (void* data, size_t bytes, size_t count, FILE* file),
                           (data, bytes, count, file))
GPUWIRE_CANCELLATION_POINT(size_t, fwrite, (const void* data, size_t bytes, size_t count, FILE* file),
                           (data, bytes, count, file))
GPUWIRE_CANCELLATION_POINT(int, getaddrinfo,
                           (const char* node, const char* service, const addrinfo* hints, addrinfo** found),
                           (node, service, hints, found))
GPUWIRE_CANCELLATION_POINT(hostent*, gethostbyname, (const char* name), (name))
GPUWIRE_CANCELLATION_POINT(int, getnameinfo,
                           (const sockaddr* address, socklen_t bytes, char* host, socklen_t host_bytes, char* service,
                            socklen_t service_bytes, int flags),
                           (address, bytes, host, host_bytes, service, service_bytes, flags))
GPUWIRE_CANCELLATION_POINT(int, msync, (void* address, size_t bytes, int flags), (address, bytes, flags))
GPUWIRE_CANCELLATION_POINT(int, nanosleep, (const timespec* time, timespec* left), (time, left))
GPUWIRE_CANCELLATION_POINT(int, open, (const char* path, int flags, mode_t mode), (path, flags, mode))
GPUWIRE_CANCELLATION_POINT(int, openat, (int folder, const char* path, int flags, mode_t mode),
                           (folder, path, flags, mode))
GPUWIRE_CANCELLATION_POINT(Directory*, opendir, (const char* path), (path))
GPUWIRE_CANCELLATION_POINT(int, pause, (), ())
GPUWIRE_CANCELLATION_POINT(int, poll, (pollfd * polled, nfds_t count, int timeout_ms), (polled, count, timeout_ms))
GPUWIRE_CANCELLATION_POINT(int, ppoll, (pollfd * polled, nfds_t count, const timespec* timeout, const sigset_t* mask),
                           (polled, count, timeout, mask))
GPUWIRE_CANCELLATION_POINT(ssize_t, pread, (int descriptor, void* data, size_t bytes, off_t offset),
                           (descriptor, data, bytes, offset))
GPUWIRE_CANCELLATION_POINT(int, pthread_cond_clockwait,
                           (pthread_cond_t * condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until),
                           (condition, mutex, clock, until))
GPUWIRE_CANCELLATION_POINT(int, pthread_cond_timedwait,
                           (pthread_cond_t * condition, pthread_mutex_t* mutex, const timespec* until),
                           (condition, mutex, until))
GPUWIRE_CANCELLATION_POINT(int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t* mutex),
                           (condition, mutex))
GPUWIRE_CANCELLATION_POINT(int, pthread_join, (pthread_t thread, void** result), (thread, result))
GPUWIRE_CANCELLATION_POINT(ssize_t, pwrite, (int descriptor, const void* data, size_t bytes, off_t offset),
                           (descriptor, data, bytes, offset))
GPUWIRE_CANCELLATION_POINT(ssize_t, pwritev, (int descriptor, const iovec* parts, int count, off_t offset),
                           (descriptor, parts, count, offset))
GPUWIRE_CANCELLATION_POINT(ssize_t, read, (int descriptor, void* data, size_t bytes), (descriptor, data, bytes))
GPUWIRE_CANCELLATION_POINT(dirent*, readdir, (Directory * folder), (folder))
GPUWIRE_CANCELLATION_POINT(ssize_t, readv, (int descriptor, const iovec* parts, int count), (descriptor, parts, count))
GPUWIRE_CANCELLATION_POINT(ssize_t, recv, (int socket, void* data, size_t bytes, int flags),
                           (socket, data, bytes, flags))
GPUWIRE_CANCELLATION_POINT(ssize_t, recvfrom,
                           (int socket, void* data, size_t bytes, int flags, void* address, void* address_bytes),
                           (socket, data, bytes, flags, address, address_bytes))
GPUWIRE_CANCELLATION_POINT(ssize_t, recvmsg, (int socket, msghdr* message, int flags), (socket, message, flags))
GPUWIRE_CANCELLATION_POINT(int, select, (int count, fd_set* in, fd_set* out, fd_set* failed, timeval* timeout),
                           (count, in, out, failed, timeout))
GPUWIRE_CANCELLATION_POINT(ssize_t, send, (int socket, const void* data, size_t bytes, int flags),
                           (socket, data, bytes, flags))
GPUWIRE_CANCELLATION_POINT(ssize_t, sendmsg, (int socket, const msghdr* message, int flags), (socket, message, flags))
GPUWIRE_CANCELLATION_POINT(ssize_t, sendto,
                           (int socket, const void* data, size_t bytes, int flags, const void* address,
                            socklen_t address_bytes),
                           (socket, data, bytes, flags, address, address_bytes))
GPUWIRE_CANCELLATION_POINT(unsigned, sleep, (unsigned seconds), (seconds))
GPUWIRE_CANCELLATION_POINT(int, usleep, (useconds_t us), (us))
GPUWIRE_CANCELLATION_POINT(ssize_t, write, (int descriptor, const void* data, size_t bytes), (descriptor, data, bytes))
GPUWIRE_CANCELLATION_POINT(ssize_t, writev, (int descriptor, const iovec* parts, int count), (descriptor, parts, count))
// NOLINTEND(bugprone-reserved-identifier)
