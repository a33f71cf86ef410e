// Tests a memory quota. Several processes of one tenant, each with several threads, allocate and free memory of every
// kind at random, from a seed, and count:
//   violations      more was held than the tenant's limit
//   false refusals  out of memory although all that anybody held or was asking for meanwhile fitted the limit with 64
//   MiB to spare left over       bytes that the server still charges after everything was freed
// What the server itself charges for contexts is measured at the start. Usage: quota_fuzz [--sessions N] [--threads N]
// [--count N] [--seed N] [--kinds LIST] Prints one line of JSON; exit status 1 if one of the counts is not 0.
#include <cuda.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kSlackBytes = 64 * kMiB;
constexpr unsigned kSessionsMax = 64;
constexpr size_t kHeldMax = 24;  // allocations of one thread

struct Options {
  unsigned sessions = 4, threads = 8;
  uint64_t count = 1'000'000, seed = 1;
  std::string kinds = "plain,pitch,managed,physical,async,pool,array,array3d";
};

// The state that the processes share.
struct Shared {
  std::atomic<unsigned> ready, begun, done, failed;
  std::atomic<uint64_t> limit, base, rounds;  // base: the memory of contexts
  std::atomic<uint64_t> streams;              // at most the memory of the threads' streams
  std::atomic<uint64_t> held;                 // the programs' bytes, which must never exceed the limit
  std::atomic<uint64_t> claimed;              // upper bound of the held or requested bytes, in the device's units
  std::atomic<uint64_t> claims;               // the sum of all claims
  std::atomic<uint64_t> violations, false_refusals, refusals, allocations, other_errors, held_most;
  std::atomic<bool> coarse;  // a device that allocates memory in units
  std::atomic<int> last_error;
};
Shared* g_shared = nullptr;

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void give_up(const char* what, CUresult result) {
  std::fprintf(stderr, "quota_fuzz: %s: error %d\n", what, int(result));
  g_shared->failed = 1;
  std::_Exit(2);
}
#define MUST(call)                                    \
  do {                                                \
    CUresult must_ = (call);                          \
    if (must_ != CUDA_SUCCESS) give_up(#call, must_); \
  } while (0)

enum class Kind { plain, pitch, managed, physical, async, pool, array, array3d };
constexpr const char* kKindNames[] = {"plain", "pitch", "managed", "physical", "async", "pool", "array", "array3d"};

struct Allocation {
  Kind kind;
  uint64_t bytes = 0, claim = 0;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  CUmemGenericAllocationHandle handle = 0;
};

// Never less than the device allocates, so that each counted false refusal is a real one.
uint64_t claim_for(Kind kind, uint64_t bytes) {
  // gpuwire's client serves small managed allocations from its own segments.
  if (kind == Kind::managed) return round_up(bytes, 8 * kMiB);
  if (!g_shared->coarse) return bytes;
  switch (kind) {
    case Kind::async:
    case Kind::pool: return round_up(bytes, 32 * kMiB) + 32 * kMiB;
    case Kind::array:
    case Kind::array3d: return round_up(bytes + bytes / 2, 2 * kMiB) + 2 * kMiB;
    default: return round_up(bytes, 2 * kMiB);
  }
}

class Thread {
 public:
  Thread(uint64_t seed, CUcontext context, CUmemoryPool pool, const std::vector<Kind>& kinds, uint64_t granularity)
      : random_(seed), context_(context), pool_(pool), kinds_(kinds), granularity_(granularity) {}

  void run() {
    MUST(cuCtxSetCurrent(context_));
    MUST(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    for (;;) {
      if (g_shared->rounds.fetch_add(1) >= g_count) break;
      step();
    }
    while (!held_.empty()) free_one(held_.size() - 1);
    MUST(cuStreamSynchronize(stream_));
    settle();
    MUST(cuStreamDestroy(stream_));
  }

  static uint64_t g_count;

 private:
  // Returns a size from one byte to the limit, small ones as often as large ones.
  uint64_t some_bytes() {
    double top = std::log2(double(g_shared->limit.load()));
    double bits = std::uniform_real_distribution<double>(0, top)(random_);
    return std::max<uint64_t>(1, uint64_t(std::exp2(bits)));
  }

  void step() {
    if (!held_.empty() && (held_.size() >= kHeldMax || random_() % 5 < 2)) return free_one(random_() % held_.size());
    take(kinds_[random_() % kinds_.size()], some_bytes());
  }

  void take(Kind kind, uint64_t bytes) {
    Allocation made{.kind = kind};
    shape(made, bytes);
    made.claim = claim_for(kind, made.bytes);
    Shared& shared = *g_shared;
    uint64_t claims_before = shared.claims.fetch_add(made.claim);
    uint64_t claimed = shared.claimed.fetch_add(made.claim) + made.claim;
    CUresult result = allocate(made);
    settle();  // this answer shows that this process's earlier frees were executed
    if (result == CUDA_SUCCESS) {
      uint64_t held = shared.held.fetch_add(made.bytes) + made.bytes;
      for (uint64_t most = shared.held_most.load();
           held > most && !shared.held_most.compare_exchange_weak(most, held);) {}
      if (held + shared.base > shared.limit) ++shared.violations;
      ++shared.allocations;
      held_.push_back(made);
      return;
    }
    // At no time since the query can the claims have been larger.
    uint64_t most = claimed + (shared.claims.load() - claims_before - made.claim);
    shared.claimed.fetch_sub(made.claim);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
      ++shared.other_errors;
      shared.last_error = int(result) * 100 + int(kind);
      return;
    }
    ++shared.refusals;
    if (most + shared.base + shared.streams + kSlackBytes <= shared.limit) {
      ++shared.false_refusals;
      std::fprintf(stderr, "false refusal: %s of %" PRIu64 " bytes, at most %" PRIu64 " claimed of %" PRIu64 "\n",
                   kKindNames[int(kind)], made.bytes, most, shared.limit - shared.base);
    }
  }

  // Rounds the size to a possible size of the kind.
  void shape(Allocation& made, uint64_t bytes) {
    switch (made.kind) {
      case Kind::physical: made.bytes = round_up(bytes, granularity_); break;
      case Kind::array:
        width_ = std::min<uint64_t>(bytes, 4096),
        height_ = std::min<uint64_t>(std::max<uint64_t>(bytes / width_, 1), 4096);
        made.bytes = width_ * height_;
        break;
      case Kind::array3d:
        width_ = std::min<uint64_t>(std::max<uint64_t>(bytes / 16, 1), 256),
        height_ = std::min<uint64_t>(std::max<uint64_t>(bytes / 16 / width_, 1), 256);
        depth_ = std::min<uint64_t>(std::max<uint64_t>(bytes / 16 / width_ / height_, 1), 256);
        made.bytes = width_ * height_ * depth_ * 16;
        break;
      case Kind::pitch:
        width_ = 512 * (1 + random_() % 8), height_ = std::max<uint64_t>(1, bytes / width_);
        made.bytes = width_ * height_;
        break;
      default: made.bytes = bytes;
    }
  }

  CUresult allocate(Allocation& made) {
    size_t pitch = 0;
    switch (made.kind) {
      case Kind::plain: return cuMemAlloc(&made.address, made.bytes);
      case Kind::pitch: return cuMemAllocPitch(&made.address, &pitch, width_, height_, 4);
      case Kind::managed: return cuMemAllocManaged(&made.address, made.bytes, CU_MEM_ATTACH_GLOBAL);
      case Kind::async: return cuMemAllocAsync(&made.address, made.bytes, stream_);
      case Kind::pool: return cuMemAllocFromPoolAsync(&made.address, made.bytes, pool_, stream_);
      case Kind::physical: {
        CUmemAllocationProp properties{};
        properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        return cuMemCreate(&made.handle, made.bytes, &properties, 0);
      }
      case Kind::array: {
        CUDA_ARRAY_DESCRIPTOR flat{};
        flat.Width = width_, flat.Height = height_, flat.Format = CU_AD_FORMAT_UNSIGNED_INT8, flat.NumChannels = 1;
        return cuArrayCreate(&made.array, &flat);
      }
      case Kind::array3d: {
        CUDA_ARRAY3D_DESCRIPTOR deep{};
        deep.Width = width_, deep.Height = height_, deep.Depth = depth_, deep.Format = CU_AD_FORMAT_FLOAT,
        deep.NumChannels = 4;
        return cuArray3DCreate(&made.array, &deep);
      }
    }
    return CUDA_ERROR_UNKNOWN;
  }

  void free_one(size_t index) {
    Allocation gone = held_[index];
    held_[index] = held_.back();
    held_.pop_back();
    // Subtracted before the server can give the memory to another session.
    g_shared->held.fetch_sub(gone.bytes);
    switch (gone.kind) {
      case Kind::async:
      case Kind::pool:
        MUST(cuMemFreeAsync(gone.address, stream_));
        MUST(cuStreamSynchronize(stream_));
        break;
      case Kind::physical: MUST(cuMemRelease(gone.handle)); break;
      case Kind::array:
      case Kind::array3d: MUST(cuArrayDestroy(gone.array)); break;
      default: MUST(cuMemFree(gone.address));
    }
    freed_ += gone.claim;
  }

  // Frees are posted; they were executed when a later call has been answered.
  void settle() { g_shared->claimed.fetch_sub(std::exchange(freed_, 0)); }

  std::mt19937_64 random_;
  const CUcontext context_;
  const CUmemoryPool pool_;
  const std::vector<Kind>& kinds_;
  const uint64_t granularity_;
  CUstream stream_ = nullptr;
  std::vector<Allocation> held_;
  uint64_t freed_ = 0;
  uint64_t width_ = 0, height_ = 0, depth_ = 0;
};
uint64_t Thread::g_count = 0;

std::vector<Kind> parse_kinds(const std::string& list) {
  std::vector<Kind> kinds;
  for (int i = 0; i < int(std::size(kKindNames)); ++i) {
    if (("," + list + ",").find(std::string(",") + kKindNames[i] + ",") != std::string::npos) kinds.push_back(Kind(i));
  }
  return kinds;
}

void wait_for(const std::atomic<unsigned>& counter, unsigned value) {
  while (counter.load() < value && !g_shared->failed) ::usleep(1000);
  if (g_shared->failed) std::_Exit(2);
}

// One session.
void session(const Options& options, unsigned number) {
  Shared& shared = *g_shared;
  CUcontext context = nullptr;
  CUmemoryPool pool = nullptr;
  size_t free_bytes = 0, total = 0, granularity = 0;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&pool, &properties));
  CUmemAllocationProp physical{};
  physical.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemGetAllocationGranularity(&granularity, &physical, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  char name[64] = {};
  MUST(cuDeviceGetName(name, sizeof name - 1, 0));
  if (!std::strstr(name, "oftware")) shared.coarse = true;
  ++shared.ready;
  wait_for(shared.ready, options.sessions);
  // All contexts exist and nothing else: the memory in use now is in use all the time, except for the threads' streams.
  MUST(cuMemGetInfo(&free_bytes, &total));
  shared.limit = total;
  shared.base = std::max<uint64_t>(shared.base, total - free_bytes);
  shared.streams = shared.coarse ? options.sessions * options.threads * kMiB : 0;
  ++shared.begun;
  wait_for(shared.begun, options.sessions);

  std::vector<Kind> kinds = parse_kinds(options.kinds);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.threads; ++i)
    threads.emplace_back(
        [&, i] { Thread(options.seed * 1000 + number * 64 + i, context, pool, kinds, granularity).run(); });
  for (std::thread& thread : threads) thread.join();
  MUST(cuMemPoolDestroy(pool));
  CUmemoryPool standard = nullptr;
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  MUST(cuMemPoolTrimTo(standard, 0));
  MUST(cuCtxSynchronize());
  // Destroying the context frees the memory that the client and the driver have cached.
  MUST(cuDevicePrimaryCtxReset(0));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  ++shared.done;
  wait_for(shared.done, options.sessions);
  if (number != 0) {
    wait_for(shared.done, options.sessions + 1);  // the last check covers all sessions
    std::_Exit(0);
  }
  size_t free_now = 0;
  for (int look = 0; look < 3000; ++look) {
    MUST(cuMemGetInfo(&free_now, &total));
    if (free_now >= free_bytes) break;
    ::usleep(1000);  // the server checks pools from time to time
  }
  uint64_t left = free_now < free_bytes ? free_bytes - free_now : 0;
  ++shared.done;
  std::printf("{\"limit\": %" PRIu64 ", \"base\": %" PRIu64 ", \"allocations\": %" PRIu64 ", \"refusals\": %" PRIu64
              ", \"held_most\": %" PRIu64 ", \"violations\": %" PRIu64 ", \"false_refusals\": %" PRIu64
              ", \"other_errors\": %" PRIu64 ", \"last_error\": %d, \"left_over\": %" PRIu64 "}\n",
              shared.limit.load(), shared.base.load(), shared.allocations.load(), shared.refusals.load(),
              shared.held_most.load(), shared.violations.load(), shared.false_refusals.load(),
              shared.other_errors.load(), shared.last_error.load(), left);
  std::fflush(stdout);
  bool right = shared.violations == 0 && shared.false_refusals == 0 && shared.other_errors == 0 && left == 0 &&
               shared.allocations > 0;
  if (right) std::printf("PASSED\n");
  std::fflush(stdout);
  std::_Exit(right ? 0 : 1);
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i], value = argv[i + 1];
    if (name == "--sessions") options.sessions = unsigned(std::stoul(value));
    else if (name == "--threads") options.threads = unsigned(std::stoul(value));
    else if (name == "--count") options.count = std::stoull(value);
    else if (name == "--seed") options.seed = std::stoull(value);
    else if (name == "--kinds") options.kinds = value;
    else return false;
  }
  return argc % 2 == 1 && options.sessions >= 1 && options.sessions <= kSessionsMax && options.threads >= 1 &&
         !parse_kinds(options.kinds).empty();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr, "usage: quota_fuzz [--sessions N] [--threads N] [--count N] [--seed N] [--kinds LIST]\n");
    return 2;
  }
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  g_shared = new (memory) Shared{};
  Thread::g_count = options.count;
  std::vector<pid_t> children;
  for (unsigned number = 1; number < options.sessions; ++number) {
    pid_t child = ::fork();
    if (child == 0) session(options, number);
    children.push_back(child);
  }
  // The first session is also a child process, so that the waiting process detects every end.
  pid_t first = ::fork();
  if (first == 0) session(options, 0);
  int status = 0, result = 2;
  ::waitpid(first, &status, 0);
  if (WIFEXITED(status)) result = WEXITSTATUS(status);
  if (result > 1) g_shared->failed = 1;
  for (pid_t child : children) {
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = std::max(result, 2);
  }
  return result;
}
