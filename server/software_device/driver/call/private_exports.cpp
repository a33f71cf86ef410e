// The functions beside the driver API that gpuwire's worker finds with dlsym.
#include "server/software_device/driver/launch/output.hpp"
#include "server/software_device/driver/module/link.hpp"
#include "server/software_device/driver/stream/work_observer.hpp"

// Sends the output of device code to `sink` (fd 1: printf, 2: assertions and faults) instead of this process's output.
// Null restores the default.
extern "C" void gpuwire_software_set_output(void (*sink)(void* user, int fd, const char* text, size_t bytes),
                                            void* user) {
  gpuwire::software_device::set_output_sink(sink, user);
}

// Reports each piece of work with its times (work_observer.hpp).
extern "C" void gpuwire_software_observe_work(const gpuwire::software_device::WorkObserver* observer) {
  gpuwire::software_device::set_work_observer(*observer);
}

// `on` not 0: refuses calls that may crash NVIDIA's driver, although it accepts them most of the time (README.md,
// "Strict mode").
extern "C" void gpuwire_software_set_strict(int on) { gpuwire::software_device::set_strict_links(on != 0); }
