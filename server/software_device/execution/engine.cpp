#include "server/software_device/execution/engine.hpp"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <mutex>
#include <thread>

#include "protocol/threads/condition.hpp"
#include "server/software_device/execution/address_spaces.hpp"
#include "server/software_device/execution/running_launch.hpp"

namespace gpuwire::software_device {
namespace {

// The maximum of blocks of one launch whose state is stored at once. For a cooperative launch, all of its blocks are.
constexpr uint64_t kResidentBlocksMax = 256;
// Blocks between two polls for cancellation, because short blocks never yield.
constexpr uint32_t kBlocksPerPoll = 256;
constexpr unsigned kThreadsMax = 1024;
// A call uses stack even if its function has no .local variables; a real device's frames are larger.
constexpr uint64_t kStackBytesPerCall = 8;
constexpr uint64_t kCallsWithoutStack = 64;

}  // namespace

RunningLaunch::RunningLaunch(const Launch& launch)
    : cluster_count(uint64_t{launch.grid.x / launch.cluster.x} * (launch.grid.y / launch.cluster.y) *
                    (launch.grid.z / launch.cluster.z)),
      launch_(launch),
      program_(static_cast<const CompiledProgram&>(*launch.program)),
      kernel_(program_.kernels_[launch.kernel]),
      function_(*program_.functions_[kernel_.function]) {
  static std::atomic<uint64_t> grids{0};  // relaxed: only distinguishes grids
  grid_id_ = grids.fetch_add(1, std::memory_order_relaxed) + 1;
  parameters_.assign(launch.parameters.begin(), launch.parameters.end());
  parameters_.resize(program_.kernel_infos_[launch.kernel].parameter_bytes);
  symbol_values_.resize(program_.symbols_.size());
  for (size_t i = 0; i < program_.symbols_.size(); ++i) {
    const Symbol& symbol = program_.symbols_[i];
    if (symbol.kind == Symbol::Kind::variable && symbol.index < launch.variable_addresses.size()) {
      symbol_values_[i] = launch.variable_addresses[symbol.index];
    }
    if (symbol.kind == Symbol::Kind::function)
      symbol_values_[i] = kFunctionAddressBase + (symbol.index + 1) * kFunctionAddressStep;
  }
  for (auto [symbol, offset] : kernel_.shared_offsets) symbol_values_[symbol] = offset;
  uint32_t align = kernel_.dynamic_shared_alignment;
  shared_bytes_ = (kernel_.static_shared_bytes + align - 1) / align * align + launch.dynamic_shared_bytes;
  local_bytes_per_thread_ = kernel_.local_bytes_per_thread;
  if (kernel_.needs_stack) local_bytes_per_thread_ += launch.stack_bytes_per_thread;
  uint64_t depth =
      kernel_.needs_stack ? kCallsWithoutStack + launch.stack_bytes_per_thread / kStackBytesPerCall : kCallDepthMax;
  call_depth_max_ = static_cast<uint32_t>(std::min<uint64_t>(depth, kCallDepthMax));
  local_bytes_per_thread_ = (local_bytes_per_thread_ + 15) / 16 * 16;
  const uint64_t cluster_blocks = uint64_t{launch.cluster.x} * launch.cluster.y * launch.cluster.z;
  resident_clusters_max_ =
      launch.cooperative ? cluster_count : std::max<uint64_t>(kResidentBlocksMax / cluster_blocks, 1);
}

void RunningLaunch::fault(Fault kind, std::string message) {
  std::lock_guard lock(mutex_);
  if (result_.fault == Fault::none) result_ = {kind, std::move(message)};
  stopped_.store(true, std::memory_order_relaxed);
}

bool RunningLaunch::poll_cancelled() {
  if (launch_.cancelled && launch_.cancelled()) fault(Fault::cancelled, "the launch was cancelled");
  return stopped();
}

void Executor::attach(RunningLaunch& running) {
  launch = &running;
  memory_ = running.launch().memory;
  for (CachedRange& range : ranges) range = {};
}

bool Executor::find(uint64_t address, uint64_t bytes, bool write, uint32_t slot) {
  CachedRange& cached = ranges[slot % kCachedRanges];
  if (memory_ != nullptr) {
    DeviceMemory::Range found = memory_->find(address);
    if (found.begin <= address && address < found.end && bytes <= found.end - address && (found.writable || !write)) {
      cached = {found.begin, found.end, found.writable};
      return true;
    }
  }
  return launch->workspace_holds(address, bytes);
}

class EngineImplementation final : public Engine {
 public:
  explicit EngineImplementation(unsigned threads) {
    if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
    threads = std::min(threads, kThreadsMax);
    // The thread that calls run() executes blocks, too.
    for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  }

  ~EngineImplementation() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  LaunchResult run(const Launch& launch) override {
    RunningLaunch running(launch);
    if (running.cluster_count == 0 || uint64_t{launch.block.x} * launch.block.y * launch.block.z == 0) return {};
    bool shared = running.cluster_count > 1 && !workers_.empty();
    if (shared) {
      {
        std::lock_guard lock(mutex_);
        launches_.push_back(&running);
      }
      work_.notify_all();
    }
    std::unique_ptr<Executor> executor = take_executor();
    execute(running, *executor);
    give_executor(std::move(executor));
    if (shared) {
      std::unique_lock lock(mutex_);
      launches_.erase(std::find(launches_.begin(), launches_.end(), &running));
      // No more workers enter; those inside leave when the blocks are done.
      left_.wait(lock, [&] { return running.executors_inside_ == 0; });
    }
    return std::move(running.result_);
  }

 private:
  void serve() {
    std::unique_ptr<Executor> executor = take_executor();
    std::unique_lock lock(mutex_);
    while (!closing_) {
      RunningLaunch* running = find_work();
      if (running == nullptr) {
        work_.wait(lock);
        continue;
      }
      ++running->executors_inside_;
      lock.unlock();
      execute(*running, *executor);
      lock.lock();
      --running->executors_inside_;
      left_.notify_all();
    }
  }

  // Returns the launch with the fewest executors that still has blocks to begin or to continue. Lock: mutex_ is held.
  RunningLaunch* find_work() {
    RunningLaunch* best = nullptr;
    for (RunningLaunch* running : launches_) {
      std::lock_guard lock(running->mutex_);
      bool any =
          !running->stopped() && (running->next_cluster_ < running->cluster_count || !running->suspended_.empty());
      if (any && (best == nullptr || running->executors_inside_ < best->executors_inside_)) best = running;
    }
    return best;
  }

  // Executes blocks of the launch until none is left.
  void execute(RunningLaunch& running, Executor& executor) {
    std::fenv_t environment;
    std::feholdexcept(&environment);
    std::fesetenv(FE_DFL_ENV);
    executor.attach(running);
    uint32_t since_poll = 0;
    while (std::unique_ptr<Cluster> cluster = next_cluster(running, executor)) {
      Cluster::Outcome outcome = cluster->run(executor);
      if (++since_poll == kBlocksPerPoll) {
        since_poll = 0;
        running.poll_cancelled();
      }
      std::unique_lock lock(running.mutex_);
      if (outcome == Cluster::Outcome::suspended) {
        running.suspended_.push_back(std::move(cluster));
        continue;
      }
      ++running.finished_clusters_;
      --running.resident_clusters_;
      lock.unlock();
      if (executor.spare_clusters.size() < kResidentBlocksMax) executor.spare_clusters.push_back(std::move(cluster));
    }
    std::fesetenv(&environment);
  }

  // Returns a block that was not begun while there is room, so that blocks that wait for other blocks find them
  // resident; otherwise the block that was suspended longest ago.
  std::unique_ptr<Cluster> next_cluster(RunningLaunch& running, Executor& executor) {
    std::unique_lock lock(running.mutex_);
    if (running.stopped()) {
      running.suspended_.clear();
      return nullptr;
    }
    bool fresh =
        running.next_cluster_ < running.cluster_count && running.resident_clusters_ < running.resident_clusters_max_;
    if (!fresh) {
      if (running.suspended_.empty()) return nullptr;
      std::unique_ptr<Cluster> cluster = std::move(running.suspended_.front());
      running.suspended_.pop_front();
      return cluster;
    }
    uint64_t index = running.next_cluster_++;
    ++running.resident_clusters_;
    lock.unlock();
    std::unique_ptr<Cluster> cluster;
    if (executor.spare_clusters.empty()) {
      cluster = std::make_unique<Cluster>();
    } else {
      cluster = std::move(executor.spare_clusters.back());
      executor.spare_clusters.pop_back();
    }
    cluster->start(running, executor, index);
    return cluster;
  }

  std::unique_ptr<Executor> take_executor() {
    std::lock_guard lock(mutex_);
    if (spare_executors_.empty()) return std::make_unique<Executor>();
    std::unique_ptr<Executor> executor = std::move(spare_executors_.back());
    spare_executors_.pop_back();
    return executor;
  }

  void give_executor(std::unique_ptr<Executor> executor) {
    if (executor->spare_clusters.size() > 4) executor->spare_clusters.resize(4);
    std::lock_guard lock(mutex_);
    if (spare_executors_.size() < kThreadsMax) spare_executors_.push_back(std::move(executor));
  }

  std::mutex mutex_;
  gpuwire::Condition work_;
  gpuwire::Condition left_;
  std::vector<RunningLaunch*> launches_;                    // guarded by mutex_
  std::vector<std::unique_ptr<Executor>> spare_executors_;  // guarded by mutex_
  bool closing_ = false;                                    // guarded by mutex_
  std::vector<std::thread> workers_;
};

std::unique_ptr<Engine> make_engine(unsigned threads) { return std::make_unique<EngineImplementation>(threads); }

}  // namespace gpuwire::software_device
