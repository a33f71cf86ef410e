// Several threads with tasks in managed memory, some done on the host and some on the device, all at once: each thread
// has its stream, attaches its memory to it as programs do for devices that need it, and checks its results. "exit"
// instead ends the process while the threads go on.
#include <cuda.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr int kThreads = 6, kTasks = 10;

__global__ void multiply(const int* matrix, const int* vector, int* result, int size) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= size) return;
  int sum = 0;
  for (int i = 0; i < size; ++i) sum += matrix[row * size + i] * vector[i];
  result[row] = sum;
}

struct Task {
  int size;
  int *matrix, *vector, *result;

  explicit Task(int size) : size(size) {
    CHECK_RUNTIME(cudaMallocManaged(&matrix, sizeof(int) * size * size));
    CHECK_RUNTIME(cudaMallocManaged(&vector, sizeof(int) * size));
    CHECK_RUNTIME(cudaMallocManaged(&result, sizeof(int) * size));
  }
  ~Task() {
    CHECK_RUNTIME(cudaFree(matrix));
    CHECK_RUNTIME(cudaFree(vector));
    CHECK_RUNTIME(cudaFree(result));
  }
  void fill(int seed) {
    for (int i = 0; i < size * size; ++i) matrix[i] = (i + seed) % 17;
    for (int i = 0; i < size; ++i) vector[i] = (i * seed) % 13, result[i] = -1;
  }
  int expected(int row) const {
    int sum = 0;
    for (int i = 0; i < size; ++i) sum += matrix[row * size + i] * vector[i];
    return sum;
  }
  void attach(cudaStream_t stream, unsigned how) {
    for (int* memory : {matrix, vector, result}) CHECK_RUNTIME(cudaStreamAttachMemAsync(stream, memory, 0, how));
  }
};

// Sizes differ, so that tasks share blocks of small allocations, and others have their own.
int size_of(int thread, int number) { return 20 + (thread * 37 + number * 61) % 380; }

void work(int thread, cudaStream_t stream, cudaStream_t for_the_host) {
  for (int number = 0; number < kTasks; ++number) {
    Task task(size_of(thread, number));
    for (int round = 0; round < 3; ++round) {
      task.fill(thread + number + round);
      if ((number + round) % 3 == 0) {
        task.attach(for_the_host, cudaMemAttachHost);
        CHECK_RUNTIME(cudaStreamSynchronize(for_the_host));
        for (int row = 0; row < task.size; ++row) task.result[row] = task.expected(row);
      } else {
        task.attach(stream, number % 2 ? cudaMemAttachSingle : cudaMemAttachGlobal);
        multiply<<<(task.size + 63) / 64, 64, 0, stream>>>(task.matrix, task.vector, task.result, task.size);
        CHECK_RUNTIME(cudaStreamSynchronize(stream));
      }
      for (int row = 0; row < task.size; row += 7) EXPECT(task.result[row] == task.expected(row));
    }
  }
}

// Touches memory until the process ends. (Calls would use a CUDA runtime that is being torn down.)
void touch_for_ever(Task& task, std::atomic<int>& begun) {
  for (int round = 0;; ++round) {
    for (int i = 0; i < task.size * task.size; i += 512) static_cast<volatile int*>(task.matrix)[i] += 1;
    if (round == 2) ++begun;
  }
}

int end_while_threads_go_on() {
  static std::vector<std::unique_ptr<Task>>& tasks = *new std::vector<std::unique_ptr<Task>>;
  static std::atomic<int> begun{0};
  for (int i = 0; i < kThreads; ++i) {
    tasks.push_back(std::make_unique<Task>(400));
    tasks.back()->fill(i);
    std::thread(touch_for_ever, std::ref(*tasks.back()), std::ref(begun)).detach();
  }
  while (begun < kThreads) std::this_thread::yield();
  // Closes the threads' memory again and again, the last time just before the end.
  for (int round = 0; round < 20; ++round) multiply<<<1, 1>>>(tasks[0]->matrix, tasks[0]->vector, tasks[0]->result, 1);
  std::exit(23);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "exit") return end_while_threads_go_on();
  std::vector<cudaStream_t> streams(kThreads + 1);
  for (cudaStream_t& stream : streams) CHECK_RUNTIME(cudaStreamCreate(&stream));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { work(i, streams[i], streams[kThreads]); });
  for (std::thread& thread : threads) thread.join();
  std::printf("PASSED\n");
  return 0;
}
