// usage: differential_interpreter SEQUENCE_FILE
//        differential_interpreter -      # files whose names come on standard input, a line each
// Makes the calls of a sequence, each on the thread that its line names, one after the other, and prints what they
// returned. The same sequence on the same kind of device prints the same. Between two sequences everything that the
// first left is ended, and "renewed" is printed where contexts had to be ended for it; after an error that only a new
// process is free of it stops with exit status 3.
#include <sys/mman.h>

#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "arguments.hpp"
#include "callbacks.hpp"
#include "calls.hpp"
#include "leftovers.hpp"

namespace differential {
namespace {

// A thread that does what it is given, one piece at a time.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    run(nullptr);
    thread_.join();
  }

  // Returns when it is done. Null: ends the thread.
  void run(const std::function<void()>& task) {
    std::unique_lock lock(mutex_);
    task_ = task;
    given_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !given_; });
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    for (bool more = true; more;) {
      changed_.wait(lock, [this] { return given_; });
      more = bool(task_);
      if (more) task_();
      given_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool given_ = false;
  std::thread thread_;  // last: it uses the others
};

uint64_t digest(const std::byte* at, size_t bytes) {
  uint64_t sum = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ uint64_t(at[i])) * 1099511628211u;
  return sum;
}

// Plain memory of the program with a pattern in it.
void map_host(Slots& slots, Leftovers& leftovers, const std::string& name, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no host memory");
  for (size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(memory)[i] = static_cast<unsigned char>(i * 7 + name.back());
  slots.put(name, {reinterpret_cast<uint64_t>(memory), bytes});
  leftovers.note_host(memory, bytes);
}

// What is not a call of the API. Empty: it is one.
std::string own_command(Slots& slots, Leftovers& leftovers, const std::set<std::string>& succeeded,
                        const std::string& command, std::istringstream& rest) {
  std::string name;
  size_t bytes = 0, offset = 0;
  char text[128] = "done";
  if (command == "host") {
    rest >> name >> bytes;
    map_host(slots, leftovers, name, bytes);
  } else if (command == "digest") {  // of host memory
    rest >> name >> offset >> bytes;
    for (std::string line; rest >> line;) {
      if (!succeeded.contains(line)) return "chance";
    }
    const Slot& slot = slots[name];
    if (slot.value == 0 || offset + bytes > slot.bytes) return "none";
    std::snprintf(text, sizeof text, "%016lx",
                  static_cast<unsigned long>(digest(reinterpret_cast<const std::byte*>(slot.value) + offset, bytes)));
  } else if (command == "counts") {
    if (leftovers.unsettled()) return "unsettled";
    CallbackCounts counts = callback_counts();
    std::snprintf(text, sizeof text, "host %u stream %u destroyed %u status %d", counts.host, counts.stream,
                  counts.destroyed, counts.status);
  } else {
    return {};
  }
  return text;
}

// `succeeded`: the numbers of lines whose calls did.
void run_line(Slots& slots, Leftovers& leftovers, std::set<std::string>& succeeded, const std::string& line) {
  // NUMBER THREAD COMMAND ARGUMENTS
  std::istringstream in(line);
  std::string number, thread, command;
  in >> number >> thread >> command;
  std::string shown = own_command(slots, leftovers, succeeded, command, in);
  if (shown.empty()) {
    std::string text;
    std::getline(in, text);
    // ~ before a name: whether the device is done already is nobody's difference.
    bool loose = command.starts_with('~');
    std::string_view command_name = command;
    Arguments arguments(slots, text);
    if (loose) command_name = command_name.substr(1);
    Outcome outcome{false, "skipped"};
    if (!arguments.would_fault()) {
      outcome = make_call(command_name, arguments.all());
      leftovers.note(command_name, arguments.all(), outcome);
    }
    if (loose && (outcome.name == "CUDA_ERROR_NOT_READY" || outcome.name == "cudaErrorNotReady"))
      outcome.name = "CUDA_SUCCESS";
    if (outcome.success) succeeded.insert(number);
    shown = outcome.name + arguments.finish(outcome.success);
  }
  std::printf("%s %s %s\n", number.c_str(), command.c_str(), shown.c_str());
}

constexpr int kStopped = 3;  // exit status: what comes after wants a new process

void run_sequence(const std::string& path, Leftovers& leftovers) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no sequence");
  Slots slots;
  std::set<std::string> succeeded;
  std::map<std::string, Worker> workers;
  std::string line, error;
  while (error.empty() && std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::string number, thread;
    in >> number >> thread;
    workers[thread].run([&] {
      try {
        run_line(slots, leftovers, succeeded, line);
      } catch (const std::exception& fault) {
        error = fault.what();
      }
    });
  }
  if (!error.empty()) throw std::runtime_error(line + ": " + error);
}

void print_log(const std::string& path, Leftovers& leftovers) {
  std::printf("sequence %s\n", path.c_str());
  run_sequence(path, leftovers);
  std::printf("end\n");
}

// The primary context is this function's, too, so that it lives from one sequence to the next.
int run_each(std::istream& paths) {
  uint64_t primary = 0;
  make_call("cuInit", {{.word = 0}});
  make_call("cuDevicePrimaryCtxRetain", {{.word = reinterpret_cast<uint64_t>(&primary)}, {.word = 0}});
  for (std::string path; std::getline(paths, path);) {
    Leftovers leftovers;
    print_log(path, leftovers);
    if (leftovers.sticky()) return kStopped;
    if (leftovers.clear()) std::printf("renewed\n");
  }
  return 0;
}

int run(const std::string& path) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (path == "-") return run_each(std::cin);
  Leftovers leftovers;
  print_log(path, leftovers);
  return 0;
}

}  // namespace

Outcome make_call(std::string_view name, const std::vector<Argument>& arguments) {
  Outcome outcome;
  if (!make_driver_call(name, arguments, outcome) && !make_runtime_call(name, arguments, outcome))
    throw std::runtime_error("an unknown call");
  return outcome;
}

}  // namespace differential

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: differential_interpreter SEQUENCE_FILE|-");
    return differential::run(argv[1]);
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "differential_interpreter: %s\n", fault.what());
    return 2;
  }
}
