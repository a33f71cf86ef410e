// A query to a server in a separate process, so that the caller can abandon it at any time.
#pragma once

#include <string>

#include <sys/types.h>

namespace gpuwire::launcher {

// Precondition: the process has one thread.
class Question {
 public:
  // `query`: as in schema/login.capnp. The server is that of GPUWIRE_SERVER.
  explicit Question(const std::string& query);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question();

  // Readable when read() can make progress.
  int descriptor() const { return answer_; }
  // Returns true when the query is complete: text() is the answer, or the reason in one line if not well().
  bool read();
  bool well() const { return well_; }
  const std::string& text() const { return text_; }

 private:
  pid_t process_ = -1;
  int answer_ = -1;
  bool well_ = false;
  std::string text_;
};

}  // namespace gpuwire::launcher
