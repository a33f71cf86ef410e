// usage: differential_interpreter SEQUENCE_FILE
//        differential_interpreter -      # files whose names come on standard input, a line each
// Makes the calls of a sequence, each on the thread of its line, one after the other except for lines with &, and
// prints their results. The same sequence on the same kind of device gives the same output. Between two sequences it
// ends all leftover objects, and prints "renewed" if it had to end contexts; after an error that only a new process
// clears it stops with exit status 3.
#include <sys/mman.h>

#include <condition_variable>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "arguments.hpp"
#include "callbacks.hpp"
#include "calls.hpp"
#include "leftovers.hpp"
#include "tasks.hpp"

namespace differential {
namespace {

// A thread that runs tasks, one at a time.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    run(nullptr);
    thread_.join();
  }

  // Runs the task and returns at its end. Null: ends the thread.
  void run(const std::function<void()>& task) {
    start(task);
    wait();
  }
  // Returns at once; wait() has to follow.
  void start(const std::function<void()>& task) {
    const std::lock_guard lock(mutex_);
    task_ = task;
    given_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
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
  std::thread thread_;  // last: it uses the other members
};

// Maps plain memory of the program with a pattern.
void map_host(Slots& slots, Leftovers& leftovers, const std::string& name, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no host memory");
  for (size_t i = 0; i < bytes; ++i)
    static_cast<unsigned char*>(memory)[i] = static_cast<unsigned char>(i * 7 + name.back());
  slots.put(name, {reinterpret_cast<uint64_t>(memory), bytes});
  leftovers.note_host(memory, bytes);
}

using Succeeded = std::set<std::string>;  // the numbers of lines whose calls succeeded

std::string hexadecimal(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(value));
  return text;
}

// Whether all lines that the rest names succeeded: otherwise the memory's contents vary.
bool all_succeeded(std::istringstream& rest, const Succeeded& succeeded) {
  for (std::string line; rest >> line;) {
    if (!succeeded.contains(line)) return false;
  }
  return true;
}

// Parses a place in memory of the program: NAME OFFSET BYTES. Null: the memory does not exist.
std::byte* place(Slots& slots, std::istringstream& rest, size_t& bytes) {
  std::string name;
  size_t offset = 0;
  rest >> name >> offset >> bytes;
  const Slot& slot = slots[name];
  if (slot.value == 0 || offset + bytes > slot.bytes) return nullptr;
  return reinterpret_cast<std::byte*>(slot.value) + offset;
}

std::string make_task(Slots& slots, Leftovers& leftovers, std::istringstream& rest) {
  std::string name;
  size_t bytes = 0;
  rest >> name;
  std::byte* at = place(slots, rest, bytes);
  Task& task = leftovers.add_task();
  task.at = at;
  task.bytes = at ? bytes : 0;
  rest >> task.seed >> task.pause_us;
  slots.put(name, {reinterpret_cast<uint64_t>(&task), sizeof task});
  return "done";
}

std::string told_of_task(Slots& slots, const Succeeded& succeeded, std::istringstream& rest) {
  std::string name;
  rest >> name;
  if (!all_succeeded(rest, succeeded)) return "chance";
  const auto* task = reinterpret_cast<const Task*>(slots[name].value);
  return task ? "runs " + std::to_string(task->runs) + " found " + hexadecimal(task->found) : "none";
}

// Runs a command that is no call of the API. Returns its output; empty: it is a call.
std::string own_command(Slots& slots, Leftovers& leftovers, const Succeeded& succeeded, const std::string& command,
                        std::istringstream& rest) {
  size_t bytes = 0;
  if (command == "host") {
    std::string name;
    rest >> name >> bytes;
    map_host(slots, leftovers, name, bytes);
  } else if (command == "digest") {  // of host memory
    const std::byte* at = place(slots, rest, bytes);
    if (!all_succeeded(rest, succeeded)) return "chance";
    return at ? hexadecimal(digest(at, bytes)) : "none";
  } else if (command == "write") {
    std::byte* at = place(slots, rest, bytes);
    uint64_t seed = 0;
    rest >> seed;
    if (!at) return "none";
    write_pattern(at, bytes, seed);
  } else if (command == "join") {  // its thread ends the call that it makes beside the others
    return "done";
  } else if (command == "task") {
    return make_task(slots, leftovers, rest);
  } else if (command == "ran") {
    return told_of_task(slots, succeeded, rest);
  } else if (command == "counts") {
    if (leftovers.unsettled()) return "unsettled";
    CallbackCounts counts = callback_counts();
    char text[128];
    std::snprintf(text, sizeof text, "host %u stream %u destroyed %u status %d", counts.host, counts.stream,
                  counts.destroyed, counts.status);
    return text;
  } else {
    return {};
  }
  return "done";
}

bool not_ready(const Outcome& outcome) {
  return outcome.name == "CUDA_ERROR_NOT_READY" || outcome.name == "cudaErrorNotReady";
}

// A line's call in three steps, so that the second can run beside other lines.
class Call {
 public:
  Call(Slots& slots, std::string number, std::string command, std::string text)
      : number_(std::move(number)), command_(std::move(command)), text_(std::move(text)), arguments_(slots, text_) {}

  // @ before a name: the call is repeated while it returns not-ready.
  void make() {
    std::string_view name = command_;
    if (name[0] == '~' || name[0] == '@') name = name.substr(1);
    outcome_ = {false, "skipped"};
    if (arguments_.would_fault()) return;
    do outcome_ = make_call(name, arguments_.all());
    while (command_[0] == '@' && not_ready(outcome_));
    name_ = name;
  }

  void finish(Leftovers& leftovers, Succeeded& succeeded) {
    if (!name_.empty()) leftovers.note(name_, arguments_.all(), outcome_);
    // ~ before a name: whether the device is done already is no difference.
    if (command_[0] == '~' && not_ready(outcome_)) outcome_.name = "CUDA_SUCCESS";
    if (outcome_.success) succeeded.insert(number_);
    const std::string shown = outcome_.name + arguments_.finish(outcome_.success);
    std::printf("%s %s %s\n", number_.c_str(), command_.c_str(), shown.c_str());
  }

 private:
  std::string number_, command_, text_;
  Arguments arguments_;  // refers to text_
  Outcome outcome_;
  std::string name_;  // empty: the call was not made
};

// Makes the calls of a sequence on its threads.
class Run {
 public:
  explicit Run(Leftovers& leftovers) : leftovers_(leftovers) {}

  // Runs a line: NUMBER THREAD COMMAND ARGUMENTS. & after the thread: it runs beside the following lines, up to this
  // thread's next one.
  void line(const std::string& text) {
    std::istringstream in(text);
    std::string number, thread, command, rest;
    in >> number >> thread >> command;
    const bool beside = thread.ends_with('&');
    if (beside) thread.pop_back();
    Thread& on = threads_[thread];
    join(on);
    if (beside) {
      std::getline(in, rest);
      on.call.emplace(slots_, number, command, rest);
      on.worker.start([&on] { on.guarded([&on] { on.call->make(); }); });
      return;
    }
    on.worker.run([&] { on.guarded([&] { alone(number, command, in); }); });
    on.rethrow();
  }

  void join_all() {
    for (auto& [name, thread] : threads_) join(thread);
  }

 private:
  struct Thread {
    std::optional<Call> call;  // runs beside other lines
    std::exception_ptr fault;  // from its last line
    Worker worker;             // last: it uses the other members

    void guarded(const std::function<void()>& body) {
      try {
        body();
      } catch (...) {
        fault = std::current_exception();
      }
    }
    void rethrow() const {
      if (fault) std::rethrow_exception(fault);
    }
  };

  void alone(const std::string& number, const std::string& command, std::istringstream& in) {
    const std::string shown = own_command(slots_, leftovers_, succeeded_, command, in);
    if (shown.empty()) {
      std::string text;
      std::getline(in, text);
      Call call(slots_, number, command, text);
      call.make();
      call.finish(leftovers_, succeeded_);
      return;
    }
    std::printf("%s %s %s\n", number.c_str(), command.c_str(), shown.c_str());
  }

  void join(Thread& thread) {
    if (!thread.call) return;
    thread.worker.wait();
    thread.rethrow();
    thread.call->finish(leftovers_, succeeded_);
    thread.call.reset();
  }

  Leftovers& leftovers_;
  Slots slots_;
  Succeeded succeeded_;
  std::map<std::string, Thread> threads_;
};

constexpr int kStopped = 3;  // exit status: the next sequence needs a new process

void run_sequence(const std::string& path, Leftovers& leftovers) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("no sequence");
  Run run(leftovers);
  std::string line;
  try {
    while (std::getline(file, line)) {
      if (!line.empty() && line[0] != '#') run.line(line);
    }
    run.join_all();
  } catch (const std::exception& fault) {
    throw std::runtime_error(line + ": " + fault.what());
  }
}

void print_log(const std::string& path, Leftovers& leftovers) {
  std::printf("sequence %s\n", path.c_str());
  run_sequence(path, leftovers);
  std::printf("end\n");
}

// This function retains the primary context, too, so that it lives from one sequence to the next.
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
