// Words in host memory that the GPU writes when a stream has reached a point: polling a word costs nothing, while
// asking the driver for an event takes a microsecond, and a question just before the end delays the report by that
// time.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gpuwire::server {

struct DriverTable;

// cuStreamWriteValue32_v2, as the driver has it, without wrappers: the report of completed work needs no turn.
using WriteWord = CUresult(CUDAAPI*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

// How many waits of a context have one at a time; the others ask the driver.
inline constexpr size_t kCompletionWordsMax = 64;

class CompletionWords;

// One of them, or none; given back when destroyed. One thread.
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

  // Behind all present work of the stream, which does not capture. A point that cannot be marked is never reached.
  void mark(CUstream stream);
  bool marked() const { return marked_; }
  // The stream has passed the mark, and its earlier writes can be read. False: not yet, or there is no mark.
  bool reached() const;

 private:
  friend class CompletionWords;
  CompletionWords* words_ = nullptr;  // outlives it
  size_t index_ = 0;
  uint32_t expected_ = 0;  // the value that the last mark writes
  bool marked_ = false;
};

// Those of one context. Any thread; the context is current on those that call take() and mark().
class CompletionWords {
 public:
  // `write` null: there are none.
  CompletionWords(const DriverTable& driver, WriteWord write) : driver_(driver), write_(write) {}
  ~CompletionWords();
  CompletionWords(const CompletionWords&) = delete;
  CompletionWords& operator=(const CompletionWords&) = delete;

  // None where all are taken, or the GPU cannot write such words.
  CompletionWord take();
  // The context is about to go, and all work in it is over: nothing is written any more.
  void abandon();

 private:
  friend class CompletionWord;
  // A cache line each, since the GPU writes one while others are looked at.
  struct alignas(64) Word {
    std::atomic<uint32_t> value{0};  // the GPU's store is the partner of the load in reached()
  };
  struct Mapped {
    Word* memory = nullptr;
    CUdeviceptr device = 0;
    bool whole = false;  // the GPU has an address for it
  };
  // Without the lock: the driver may wait for streams, and they for a thread that returns a word.
  Mapped map() const;
  void adopt(const Mapped& mapped);

  const DriverTable& driver_;
  const WriteWord write_;
  std::mutex mutex_;  // a leaf; not held while the driver is called
  Word* memory_ = nullptr;
  CUdeviceptr device_ = 0;
  bool tried_ = false;  // somebody maps the words, or has
  bool abandoned_ = false;
  std::vector<size_t> free_;
  // For each word, the value of the last mark. The next mark writes another value, so that a late write of an abandoned
  // mark is not mistaken for it.
  std::vector<uint32_t> marks_;
};

}  // namespace gpuwire::server
