// What a server session is made of. Each part is told of the two things that happen to a session as a whole: its end,
// and fork(). A part registers itself when it is made, and cannot be made without saying what it does then, so none can
// be forgotten.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::client {

class SessionParts;

enum class SessionEnd : uint8_t {
  // The connection is over, not by our doing. On whichever thread found out: leaf locks alone, no stdio, nothing that
  // waits.
  lost,
  // The program ends, and the connection has been closed. Another thread may still be in the middle of reading. With no
  // lock held.
  closed,
};

class SessionPart {
 public:
  SessionPart(const SessionPart&) = delete;
  SessionPart& operator=(const SessionPart&) = delete;
  virtual ~SessionPart() = default;

  // Nothing can be sent any more; later calls of the program fail. May come twice: first lost, then closed.
  virtual void ended(SessionEnd how) noexcept = 0;
  // In the child after fork(), which never uses the session again: its locks may have been held, and its containers
  // been half changed, by threads that no longer exist. What the child can still reach, whether by memory it has
  // inherited or by returning from a function of its own that we called, must not stand still or fault.
  virtual void after_fork_in_child() noexcept = 0;

 protected:
  explicit SessionPart(SessionParts& all) noexcept;

 private:
  friend class SessionParts;
  SessionPart* next_ = nullptr;
};

// The parts of one session, in the order in which they were made. They live as long as it does. Parts are made by one
// thread, before anything is told.
class SessionParts {
 public:
  SessionParts() = default;
  SessionParts(const SessionParts&) = delete;
  SessionParts& operator=(const SessionParts&) = delete;

  void notify_ended(SessionEnd how) noexcept;
  void notify_forked() noexcept;

 private:
  friend class SessionPart;
  SessionPart* first_ = nullptr;
  SessionPart** end_ = &first_;  // where the next one is hung
};

}  // namespace gpuwire::client
