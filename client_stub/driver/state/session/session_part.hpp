// A part of a server session. Each part is notified of the two events of a whole session: its end, and fork(). The
// constructor registers the part, and each part must define its actions, so none can be forgotten.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::client {

class SessionParts;

enum class SessionEnd : uint8_t {
  // The connection is lost. Thread: the one that detected the loss. The part takes leaf locks only, uses no stdio, and
  // does not wait.
  lost,
  // The program ends, and the connection has been closed. Another thread may still be reading. Lock: none.
  closed,
};

class SessionPart {
 public:
  SessionPart(const SessionPart&) = delete;
  SessionPart& operator=(const SessionPart&) = delete;
  virtual ~SessionPart() = default;

  // Nothing can be sent any more; later calls of the program fail. May be called twice: first lost, then closed.
  virtual void ended(SessionEnd how) noexcept = 0;
  // In the child after fork(), which never uses the session again: threads that no longer exist may have held its locks
  // and left its containers half changed. Code that the child can still reach, by inherited memory or by returning from
  // a function of its own that the client called, must neither block nor fault.
  virtual void after_fork_in_child() noexcept = 0;

 protected:
  explicit SessionPart(SessionParts& all) noexcept;

 private:
  friend class SessionParts;
  SessionPart* next_ = nullptr;
};

// The parts of one session, in the order of their construction. They live as long as the session. One thread makes
// them, before any notification.
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
  // Where the next part is linked.
  SessionPart** end_ = &first_;
};

}  // namespace gpuwire::client
