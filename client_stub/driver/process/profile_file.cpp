#include "client_stub/driver/process/profile_file.hpp"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "client_stub/driver/process/clock.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/wait_observer.hpp"
#include "protocol/wire/utf8.hpp"

namespace gpuwire::client {

namespace {

constexpr uint64_t kGpuProcessBit = 1u << 30;  // above every process number of Linux (at most 2^22)

void note_wait_span(WaitKind kind, uint64_t begun_ns, uint64_t ended_ns) noexcept {
  switch (kind) {
    case WaitKind::reply: return profile_span("wait", "wait for the reply", begun_ns, ended_ns, {});
    case WaitKind::room: return profile_span("wait", "wait for room to send", begun_ns, ended_ns, {});
    case WaitKind::queue: return profile_span("queue", "wait in the server's queue", begun_ns, ended_ns, {});
  }
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto c = static_cast<unsigned char>(text[0]);
    size_t taken = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += char(c);
    } else if (c >= 0x20 && c < 0x7f) {
      out += char(c);
    } else if (c >= 0x80 && (taken = wire::utf8_length(text)) != 0) {
      out.append(text.substr(0, taken));
    } else {
      taken = 1;
      out += '?';
    }
    text.remove_prefix(taken);
  }
  return out;
}

ProfileFile::~ProfileFile() { flush(); }

bool ProfileFile::open(const char* path, std::string& error) noexcept {
  try {
    buffer_.reserve(kBufferBytes + kEventBytesMax);
    return file_.open(path, error);
  } catch (...) {  // no memory
    return false;
  }
}

void ProfileFile::name_process() {
  named_ = true;
  char name[32] = {};
  ::prctl(PR_GET_NAME, name, 0, 0, 0);
  const std::string shown = json_text(name);
  const long pid = ::getpid();
  char text[256];
  auto write_event = [&](const char* format, auto... values) REQUIRES(mutex_) {
    const int length = std::snprintf(text, sizeof text, format, values...);
    append({text, std::min(size_t(std::max(length, 0)), sizeof text - 1)});
  };
  write_event(R"("ph":"M","name":"process_name","pid":%ld,"args":{"name":"%s"})", pid, shown.c_str());
  write_event(R"("ph":"M","name":"process_name","pid":%)" PRIu64 R"(,"args":{"name":"GPU work of %s %ld"})",
              gpu_process_number(), shown.c_str(), pid);
}

void ProfileFile::append(std::string_view members) {
  if (buffer_.empty()) held_since_ns_ = monotonic_ns();
  buffer_ += '{';
  buffer_.append(members);
  buffer_ += "},\n";
}

void ProfileFile::event(std::string_view members) noexcept {
  if (!file_.is_open() || members.size() > kEventBytesMax) return;
  try {
    MutexLock lock(mutex_);
    if (full_) return;
    if (!named_) name_process();
    append(members);
    if (through_ || buffer_.size() >= kBufferBytes || monotonic_ns() - held_since_ns_ >= kHeldNs) write_buffer();
  } catch (...) {}  // no memory for its name
}

// Writes whole lines in one call. If a process is killed in between, the lines written so far remain.
void ProfileFile::write_buffer() noexcept {
  if (buffer_.empty()) return;
  if (written_bytes_ + buffer_.size() > kFileBytesMax) {
    full_ = true;
    log_stderr("the profile ends here: it has become too long");
  } else if (!file_.append(buffer_)) {
    full_ = true;
    log_stderr("the profile ends here: its file cannot be written");
  }
  written_bytes_ += buffer_.size();
  buffer_.clear();
}

void ProfileFile::flush() noexcept {
  if (!file_.is_open()) return;
  MutexLock lock(mutex_);
  write_buffer();
}

std::chrono::nanoseconds ProfileFile::upkeep() noexcept {
  if (!file_.is_open()) return std::chrono::nanoseconds::max();
  MutexLock lock(mutex_);
  if (!buffer_.empty() && monotonic_ns() - held_since_ns_ >= kHeldNs) write_buffer();
  return std::chrono::nanoseconds(kHeldNs);
}

void ProfileFile::write_through() noexcept {
  if (!file_.is_open()) return;
  MutexLock lock(mutex_);
  through_ = true;
  write_buffer();
}

void ProfileFile::after_fork_in_child() noexcept {
  new (&mutex_) Mutex;
  new (&buffer_) std::string;  // the parent's string may be half changed
  held_since_ns_ = written_bytes_ = 0;
  named_ = full_ = through_ = false;
}

ProfileFile& profile_file() noexcept {
  alignas(ProfileFile) static char place[sizeof(ProfileFile)];
  static ProfileFile* file = new (place) ProfileFile;
  return *file;
}

bool begin_profile_from_environment() noexcept {
  const char* path = setting("GPUWIRE_PROFILE_FILE");
  if (!path || !*path) return false;
  std::string error;
  if (!profile_file().open(path, error)) {
    log_stderr(error);
    return false;
  }
  pthread_atfork(nullptr, nullptr, [] { profile_file().after_fork_in_child(); });
  // Runs after the handlers that initialise_process() registers later, so after the end of the session.
  std::atexit([] { profile_file().write_through(); });
  g_wait_observer.store(&note_wait_span, std::memory_order_relaxed);
  return true;
}

uint64_t gpu_process_number() noexcept { return kGpuProcessBit | uint64_t(::getpid()); }

void profile_span(const char* category, const char* name, uint64_t begun_ns, uint64_t ended_ns,
                  std::string_view arguments) noexcept {
  char text[1024];
  const uint64_t took = ended_ns > begun_ns ? ended_ns - begun_ns : 0;
  const int length =
      std::snprintf(text, sizeof text,
                    R"("ph":"X","cat":"%s","name":"%s","ts":%)" PRIu64
                    ".%03u"
                    R"(,"dur":%)" PRIu64
                    ".%03u"
                    R"(,"pid":%ld,"tid":%ld,"args":{%.*s})",
                    category, name, begun_ns / 1000, unsigned(begun_ns % 1000), took / 1000, unsigned(took % 1000),
                    long(::getpid()), long(::syscall(SYS_gettid)), int(arguments.size()), arguments.data());
  if (length > 0 && size_t(length) < sizeof text) profile_file().event({text, size_t(length)});
}

}  // namespace gpuwire::client
