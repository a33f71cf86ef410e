// Words in host memory that the GPU writes when a stream has reached a point: polling a word is almost free, while a
// query of an event takes a microsecond, and a query just before the end delays the report by that time.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

struct DriverTable;

// The driver's cuStreamWriteValue32_v2 without wrappers: the report of completed work needs no turn of the GPU
// scheduler.
using WriteWord = CUresult(CUDAAPI*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// The number of words of a context; further waits query the driver.
inline constexpr size_t kCompletionWordsMax = 64;

class CompletionWords;

// A word, or none; its destructor returns it. One thread.
class CompletionWord {
 public:
  CompletionWord() = default;
  CompletionWord(CompletionWord&& other) noexcept { *this = std::move(other); }
  CompletionWord& operator=(CompletionWord&& other) noexcept {
    std::swap(words_, other.words_);
    std::swap(index_, other.index_);
    std::swap(expected_, other.expected_);
    std::swap(marked_, other.marked_);
    return *this;
  }
  ~CompletionWord();

  // Has the GPU write the word after all present work of the stream. Precondition: the stream does not capture. If the
  // driver refuses the write, reached() stays false.
  void mark(CUstream stream);
  bool marked() const { return marked_; }
  // Returns whether the stream has passed the mark; its earlier writes can then be read. Returns false also if there is
  // no mark.
  bool reached() const;

 private:
  friend class CompletionWords;
  // Outlives this object.
  CompletionWords* words_ = nullptr;
  size_t index_ = 0;
  // The value that the last mark writes.
  uint32_t expected_ = 0;
  bool marked_ = false;
};

// The words of one context. Any thread; the context is current on a thread that calls take() or mark().
class CompletionWords {
 public:
  // Without `write` there are no words.
  CompletionWords(const DriverTable& driver, WriteWord write) : driver_(driver), write_(write) {}
  ~CompletionWords();
  CompletionWords(const CompletionWords&) = delete;
  CompletionWords& operator=(const CompletionWords&) = delete;

  // Returns no word if all are taken, or the GPU cannot write words.
  CompletionWord take();
  // Releases the words before the context ends. Precondition: the context has no work left, so the GPU writes no word.
  void abandon();

 private:
  friend class CompletionWord;
  // Each word has its own cache line, since the GPU writes one while other words are polled.
  struct alignas(64) Word {
    // The GPU's store is the partner of the load in reached().
    std::atomic<uint32_t> value{0};
  };
  struct Mapped {
    Word* memory = nullptr;
    CUdeviceptr device = 0;
    // The GPU has an address for the memory.
    bool whole = false;
  };
  // Precondition: mutex_ is not held: the driver may wait for streams, and these for a thread that returns a word.
  Mapped map() const;
  void adopt(const Mapped& mapped) REQUIRES(mutex_);

  const DriverTable& driver_;
  const WriteWord write_;
  // Written once, under mutex_, before the first word is taken; a word reads them without the lock.
  Word* memory_ = nullptr;
  CUdeviceptr device_ = 0;
  // A leaf; not held during a driver call.
  Mutex mutex_;
  // A thread maps the words, or has mapped them.
  bool tried_ GUARDED_BY(mutex_) = false;
  bool abandoned_ GUARDED_BY(mutex_) = false;
  std::vector<size_t> free_ GUARDED_BY(mutex_);
  // For each word, the value of the last mark. The next mark writes another value, so that a late write of an abandoned
  // mark is not mistaken for it.
  std::vector<uint32_t> marks_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
