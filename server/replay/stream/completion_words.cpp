#include "server/replay/stream/completion_words.hpp"

#include <sys/mman.h>

#include <new>

#include "server/driver_table.hpp"

namespace gpuwire::server {

CompletionWord::~CompletionWord() {
  if (!words_) return;
  std::lock_guard lock(words_->mutex_);
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
  if (!abandoned_) unregister();
  if (memory_) ::munmap(memory_, kCompletionWordsMax * sizeof(Word));
}

bool CompletionWords::map() {
  constexpr size_t kBytes = kCompletionWordsMax * sizeof(Word);
  tried_ = true;
  if (!write_ || !driver_.cuMemHostRegister_v2 || !driver_.cuMemHostUnregister || !driver_.cuMemHostGetDevicePointer_v2)
    return false;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  // For all contexts: a stream that turns out to be another's is no fault of its context.
  if (driver_.cuMemHostRegister_v2(memory, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE) !=
      CUDA_SUCCESS) {
    ::munmap(memory, kBytes);
    return false;
  }
  memory_ = new (memory) Word[kCompletionWordsMax];
  if (driver_.cuMemHostGetDevicePointer_v2(&device_, memory, 0) != CUDA_SUCCESS) return false;
  marks_.resize(kCompletionWordsMax);
  for (size_t index = kCompletionWordsMax; index > 0; --index) free_.push_back(index - 1);
  return true;
}

void CompletionWords::unregister() {
  if (memory_) driver_.cuMemHostUnregister(memory_);
}

CompletionWord CompletionWords::take() {
  std::lock_guard lock(mutex_);
  CompletionWord word;
  if (abandoned_ || (!tried_ && !map()) || free_.empty()) return word;
  word.words_ = this;
  word.index_ = free_.back();
  word.expected_ = marks_[word.index_];
  free_.pop_back();
  return word;
}

void CompletionWords::abandon() {
  std::lock_guard lock(mutex_);
  if (!abandoned_) unregister();
  abandoned_ = true;
}

}  // namespace gpuwire::server
