// What earlier programs of the user have asked about the occupancy of an image's functions: all of it that is about one
// function is asked together with the first question about it. CUDA's libraries find out in this way how a card groups
// its multiprocessors: dozens of questions in a row about an empty kernel, each with another cluster.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/launch/occupancy_question.hpp"
#include "client_stub/driver/module/image_lines.hpp"

namespace gpuwire::client {

inline constexpr size_t kOccupancyQuestionsAheadMax = 64;   // about one function
inline constexpr size_t kOccupancyQuestionsKnownMax = 512;  // about all functions of an image

// Of one image: a line for each question, in the folder "occupancy". Any thread; one leaf lock, held while the file is
// read and written.
class KnownOccupancyQuestions {
 public:
  KnownOccupancyQuestions(std::string folder, const ProgramImage::Digest& image) : lines_(std::move(folder), image) {}

  // What is known about a function, for whoever asks about it first; nothing for the others.
  std::vector<OccupancyQuestion> ahead(std::string_view function);

  // The program has asked the server. A function about which programs ask one thing needs no file.
  void asked(std::string_view function, const OccupancyQuestion& question);

 private:
  void read_once();

  ImageLines lines_;
  std::mutex mutex_;
  bool read_ = false;
  std::set<std::string, std::less<>> known_;              // lines
  std::map<std::string, std::string, std::less<>> only_;  // by function: the line that is written down with the next
  std::set<std::string, std::less<>> begun_;              // functions that have been asked about
};

}  // namespace gpuwire::client
