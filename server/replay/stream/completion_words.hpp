// Words in host memory that the GPU writes when a stream has come so far: looking at one takes nothing, where asking
// the driver for an event takes it a microsecond, and what is asked just before the end is told that much later.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace gpuwire::server {

struct DriverTable;

// cuStreamWriteValue32_v2, as the driver has it, with nothing before it: that work is over is told without a turn.
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

  // Behind all that is on the stream now, which does not capture. What cannot be marked is never reached.
  void mark(CUstream stream);
  bool marked() const { return marked_; }
  // The stream has passed the mark, and what it wrote before can be read. False: not yet, or there is no mark.
  bool reached() const;

 private:
  friend class CompletionWords;
  CompletionWords* words_ = nullptr;  // outlives it
  size_t index_ = 0;
  uint32_t expected_ = 0;  // what the last mark writes
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
  bool map();
  void unregister();

  const DriverTable& driver_;
  const WriteWord write_;
  std::mutex mutex_;  // a leaf, but for the driver calls of map() and unregister()
  Word* memory_ = nullptr;
  CUdeviceptr device_ = 0;
  bool tried_ = false;
  bool abandoned_ = false;
  std::vector<size_t> free_;
  // Of each word, what the last mark wrote. The next writes something else, so that a mark which was given up, and is
  // written late, is taken for no other.
  std::vector<uint32_t> marks_;
};

}  // namespace gpuwire::server
