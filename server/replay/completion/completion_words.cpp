#include "server/replay/completion/completion_words.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "server/driver_table.hpp"

namespace gpuwire::server {

CompletionWord::~CompletionWord() {
  if (!words_) return;
  MutexLock lock(words_->mutex_);
  words_->marks_[index_] = expected_;
  words_->free_.push_back(index_);
}

void CompletionWord::mark(CUstream stream) {
  if (!words_) return;
  const CUdeviceptr word = words_->device_ + index_ * sizeof(CompletionWords::Word);
  marked_ = words_->write_(stream, word, ++expected_, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
}

bool CompletionWord::reached() const {
  return marked_ && words_->memory_[index_].value.load(std::memory_order_acquire) == expected_;
}

CompletionWords::~CompletionWords() {
  if (memory_ && !abandoned_) driver_.cuMemHostUnregister(memory_);
  if (memory_) ::munmap(memory_, kCompletionWordsMax * sizeof(Word));
}

CompletionWords::Mapped CompletionWords::map() const {
  constexpr size_t kBytes = kCompletionWordsMax * sizeof(Word);
  if (!write_ || !driver_.cuMemHostRegister_v2 || !driver_.cuMemHostUnregister || !driver_.cuMemHostGetDevicePointer_v2)
    return {};
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  // The words are registered for all contexts, so that a write in a stream of another context is not a fault there.
  if (driver_.cuMemHostRegister_v2(memory, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE) !=
      CUDA_SUCCESS) {
    ::munmap(memory, kBytes);
    return {};
  }
  Mapped mapped;
  mapped.memory = new (memory) Word[kCompletionWordsMax];
  mapped.whole = driver_.cuMemHostGetDevicePointer_v2(&mapped.device, memory, 0) == CUDA_SUCCESS;
  return mapped;
}

void CompletionWords::adopt(const Mapped& mapped) {
  memory_ = mapped.memory;
  device_ = mapped.device;
  if (!mapped.whole) return;
  marks_.resize(kCompletionWordsMax);
  for (size_t index = kCompletionWordsMax; index > 0; --index) free_.push_back(index - 1);
}

CompletionWord CompletionWords::take() {
  MutexLock lock(mutex_);
  CompletionWord word;
  if (abandoned_) return word;
  if (!std::exchange(tried_, true)) {
    lock.unlock();
    const Mapped mapped = map();
    lock.lock();
    adopt(mapped);
  }
  if (abandoned_ || free_.empty()) return word;
  word.words_ = this;
  word.index_ = free_.back();
  word.expected_ = marks_[word.index_];
  free_.pop_back();
  return word;
}

void CompletionWords::abandon() {
  Word* registered = nullptr;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(abandoned_, true)) registered = memory_;
  }
  if (registered) driver_.cuMemHostUnregister(registered);
}

}  // namespace gpuwire::server
