// Locks, and annotations that say what they guard. `clang -Wthread-safety` checks them
// (test/format/thread_safety_test.py); other compilers ignore them. A member with GUARDED_BY(mutex_) is used only while
// that lock is held, and a function with REQUIRES(mutex_) is called while it is held.
#pragma once

#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define GPUWIRE_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define GPUWIRE_THREAD_SAFETY(attribute)
#endif

#define GUARDED_BY(lock) GPUWIRE_THREAD_SAFETY(guarded_by(lock))
#define REQUIRES(...) GPUWIRE_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) GPUWIRE_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define RELEASE(...) GPUWIRE_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) GPUWIRE_THREAD_SAFETY(requires_shared_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) GPUWIRE_THREAD_SAFETY(acquire_shared_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) GPUWIRE_THREAD_SAFETY(release_shared_capability(__VA_ARGS__))
// For a function that runs without other threads (the child after a fork), or is ordered in another way, which the
// function's comment states.
#define WITHOUT_LOCK_CHECK GPUWIRE_THREAD_SAFETY(no_thread_safety_analysis)
#define TRY_ACQUIRE(...) GPUWIRE_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))

namespace gpuwire {

// A std::mutex that the annotations can name.
class GPUWIRE_THREAD_SAFETY(capability("mutex")) Mutex : public std::mutex {
 public:
  void lock() ACQUIRE() { std::mutex::lock(); }
  void unlock() RELEASE() { std::mutex::unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return std::mutex::try_lock(); }
};

// Holds a Mutex until the end of the block, like std::unique_lock. The predicate of a wait has REQUIRES, too:
// `changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return ending_; })`.
class GPUWIRE_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex) {}
  // Takes over a lock that the thread holds, as after try_lock().
  MutexLock(Mutex& mutex, std::adopt_lock_t held) REQUIRES(mutex) : lock_(mutex, held) {}
  ~MutexLock() RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() ACQUIRE() { lock_.lock(); }
  void unlock() RELEASE() { lock_.unlock(); }
  // For condition variables, which release the lock and take it again.
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

// A std::shared_mutex that the annotations can name: its members are read with either lock below, and written with the
// exclusive one.
class GPUWIRE_THREAD_SAFETY(capability("mutex")) SharedMutex : public std::shared_mutex {
 public:
  void lock() ACQUIRE() { std::shared_mutex::lock(); }
  void unlock() RELEASE() { std::shared_mutex::unlock(); }
  void lock_shared() ACQUIRE_SHARED() { std::shared_mutex::lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { std::shared_mutex::unlock_shared(); }
};

// Holds a SharedMutex alone until the end of the block.
class GPUWIRE_THREAD_SAFETY(scoped_lockable) ExclusiveLock {
 public:
  explicit ExclusiveLock(SharedMutex& mutex) ACQUIRE(mutex) : lock_(mutex) {}
  ~ExclusiveLock() RELEASE() {}
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  std::lock_guard<std::shared_mutex> lock_;
};

// Holds a SharedMutex together with other readers until the end of the block.
class GPUWIRE_THREAD_SAFETY(scoped_lockable) SharedLock {
 public:
  explicit SharedLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : lock_(mutex) {}
  ~SharedLock() RELEASE() {}
  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace gpuwire
