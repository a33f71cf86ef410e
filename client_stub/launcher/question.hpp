// A query to a server, made by a separate process: the caller can give up the answer at any time.
#pragma once

#include <string>

#include <sys/types.h>

namespace gpuwire::launcher {

// Made by a process with one thread.
class Question {
 public:
  // `query`: as in schema/login.capnp; to the server of GPUWIRE_SERVER.
  explicit Question(const std::string& query);
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;
  ~Question();

  // Readable when read() has something to do.
  int descriptor() const { return answer_; }
  // True: it is answered, and text() is the answer or, unless well(), one line that says why there is none.
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
