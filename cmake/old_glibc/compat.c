// The functions that libstdc++, libgcc and the headers of a newer glibc expect and glibc 2.31 lacks. Linked
// into each program and library that is to run with it, and seen by nobody else.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INTERNAL __attribute__((visibility("hidden")))

// Whether a process has one thread only: libstdc++ then leaves out atomic instructions. "No" is always right.
INTERNAL char __libc_single_threaded = 0;

// glibc 2.36; libstdc++'s std::random_device asks for it.
INTERNAL uint32_t arc4random(void) {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
    abort();  // a request of this size is not cut short
  return number;
}

// Calls `act` for each open descriptor from `first` to `last`, not for the one that reads the list. Returns 0, or what
// `act` has returned first that is not 0; ENOSYS without /proc.
static int each_descriptor(unsigned first, unsigned last, int (*act)(int descriptor, void* context), void* context) {
  DIR* list = opendir("/proc/self/fd");
  if (!list) return ENOSYS;
  int error = 0;
  for (struct dirent* entry; error == 0 && (entry = readdir(list));) {
    if (entry->d_name[0] == '.') continue;
    const int descriptor = atoi(entry->d_name);
    if (descriptor == dirfd(list) || (unsigned)descriptor < first || (unsigned)descriptor > last) continue;
    error = act(descriptor, context);
  }
  closedir(list);
  return error;
}

static int close_one(int descriptor, void* context) {
  (void)context;
  close(descriptor);
  return 0;
}

// glibc 2.34. Linux 5.9 has the system call, and only that knows flags.
INTERNAL int close_range(unsigned first, unsigned last, int flags) {
  if (syscall(SYS_close_range, first, last, flags) == 0) return 0;
  if (errno != ENOSYS || flags != 0) return -1;
  const int error = each_descriptor(first, last, close_one, NULL);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

static int close_in_child(int descriptor, void* actions) {
  const int flags = fcntl(descriptor, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC)) return 0;
  return posix_spawn_file_actions_addclose(actions, descriptor);
}

// glibc 2.34. An older posix_spawn() has no such action: the descriptors that the new program would inherit are closed
// one by one. What another thread opens meanwhile is closed too if it is opened to be closed in new programs.
INTERNAL int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions, int first) {
  if (first < 0) return EBADF;
  return each_descriptor((unsigned)first, INT_MAX, close_in_child, actions);
}

// glibc 2.33 made functions of these; before, headers turned them into calls with the layout's number in front.
struct stat;
enum { kStatLayout = 1 };
int __xstat(int layout, const char* path, struct stat* facts);
int __fxstat(int layout, int descriptor, struct stat* facts);
int __lxstat(int layout, const char* path, struct stat* facts);
int __fxstatat(int layout, int folder, const char* path, struct stat* facts, int flags);
INTERNAL int stat(const char* path, struct stat* facts) { return __xstat(kStatLayout, path, facts); }
INTERNAL int fstat(int descriptor, struct stat* facts) { return __fxstat(kStatLayout, descriptor, facts); }
INTERNAL int lstat(const char* path, struct stat* facts) { return __lxstat(kStatLayout, path, facts); }
INTERNAL int fstatat(int folder, const char* path, struct stat* facts, int flags) {
  return __fxstatat(kStatLayout, folder, path, facts, flags);
}
// The same layout on 64-bit machines.
INTERNAL int stat64(const char* path, struct stat* facts) { return stat(path, facts); }
INTERNAL int fstat64(int descriptor, struct stat* facts) { return fstat(descriptor, facts); }
INTERNAL int lstat64(const char* path, struct stat* facts) { return lstat(path, facts); }
INTERNAL int fstatat64(int folder, const char* path, struct stat* facts, int flags) {
  return fstatat(folder, path, facts, flags);
}

// glibc 2.35: where the unwinding tables of the code at an address are; libgcc asks when an exception is thrown.
struct Search {
  uintptr_t address;
  struct dl_find_object* facts;
};

static int inspect_object(struct dl_phdr_info* object, size_t bytes, void* context) {
  (void)bytes;
  struct Search* search = context;
  const ElfW(Phdr)* unwinding = NULL;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  int inside = 0;
  for (unsigned i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &object->dlpi_phdr[i];
    uintptr_t first = object->dlpi_addr + segment->p_vaddr, behind = first + segment->p_memsz;
    if (segment->p_type == PT_GNU_EH_FRAME) unwinding = segment;
    if (segment->p_type != PT_LOAD) continue;
    if (first < begin) begin = first;
    if (behind > end) end = behind;
    if (search->address >= first && search->address < behind) inside = 1;
  }
  if (!inside || !unwinding) return inside;
  search->facts->dlfo_map_start = (void*)begin;
  search->facts->dlfo_map_end = (void*)end;
  search->facts->dlfo_eh_frame = (void*)(object->dlpi_addr + unwinding->p_vaddr);
  return 1;
}

INTERNAL int _dl_find_object(void* address, struct dl_find_object* facts) {
  memset(facts, 0, sizeof *facts);
  struct Search search = {(uintptr_t)address, facts};
  dl_iterate_phdr(inspect_object, &search);
  return facts->dlfo_eh_frame ? 0 : -1;
}
