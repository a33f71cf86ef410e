// What earlier programs of the user have asked about the occupancy of an image's functions: all of it that is about one
// function is asked together with the first question about it. CUDA's libraries find out in this way how a card groups
// its multiprocessors: dozens of questions in a row about an empty kernel, each with another cluster. What is set for a
// function changes the answers, so each question is known with what had been set (OccupancyState::name).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client_stub/driver/state/launch/occupancy_question.hpp"
#include "client_stub/driver/state/warm_start/warm_start.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

inline constexpr size_t kPrefetchedOccupancyQuestionsMax = 64;  // about one function
inline constexpr size_t kProfiledOccupancyQuestionsMax = 512;   // about all functions of an image
inline constexpr size_t kPrefetchedOccupancyStatesMax = 8;      // of one function, besides that in which nothing is set

// The section "occupancy" of one image: a line for each question. Any thread. Lock: mutex_, held around the store's.
class ProfiledOccupancyQuestions {
 public:
  explicit ProfiledOccupancyQuestions(std::shared_ptr<WarmStart> image) : image_(std::move(image)) {}

  // What was asked about a function in a state, for whoever asks about it first; nothing for the others.
  std::vector<OccupancyQuestion> ahead(std::string_view function, std::string_view state);
  // In which states something was asked, of those that are certain and in which something is set.
  std::vector<std::string> states(std::string_view function);

  // The program has asked the server. One question about a function is worth knowing, too: it comes with the function
  // where that comes ahead of the program (prefetched_images.hpp).
  void asked(std::string_view function, std::string_view state, const OccupancyQuestion& question);

 private:
  void read_once() REQUIRES(mutex_);

  const std::shared_ptr<WarmStart> image_;
  Mutex mutex_;
  bool read_ GUARDED_BY(mutex_) = false;
  std::set<std::string, std::less<>> known_ GUARDED_BY(mutex_);  // lines
  // The functions about which the program has asked, with their states.
  std::set<std::pair<std::string, std::string>> begun_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
