// Programs are started by glibc's crt1.o, which since 2.34 leaves it to the C library to run a program's constructors.
// An older C library wants a function that does so, and runs none when it gets none; a newer one takes such a function
// too. Linked with --wrap=__libc_start_main.
#include <stddef.h>

typedef void (*Constructor)(int, char**, char**);
typedef int Main(int, char**, char**);

extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);

static void run_constructors(int argc, char** argv, char** environment) {
  _init();
  const size_t count = (size_t)(__init_array_end - __init_array_start);
  for (size_t i = 0; i < count; ++i) __init_array_start[i](argc, argv, environment);
}

int __real___libc_start_main(Main* main, int argc, char** argv, Constructor constructors, void (*destructors)(void),
                             void (*of_loader)(void), void* stack_end);

int __wrap___libc_start_main(Main* main, int argc, char** argv, Constructor constructors, void (*destructors)(void),
                             void (*of_loader)(void), void* stack_end) {
  (void)constructors;
  return __real___libc_start_main(main, argc, argv, run_constructors, destructors, of_loader, stack_end);
}
