// The questions of earlier programs of the user about the occupancy of an image's functions. All questions about one
// function are sent together with the first. CUDA's libraries find out in this way how a card groups its
// multiprocessors: dozens of questions in a row about an empty kernel, each with another cluster. Settings of a
// function change the answers, so each question is recorded with the settings (OccupancyState::name).
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

// About one function.
inline constexpr size_t kPrefetchedOccupancyQuestionsMax = 64;
// About all functions of an image.
inline constexpr size_t kProfiledOccupancyQuestionsMax = 512;
// The bound for one function, besides the state without settings.
inline constexpr size_t kPrefetchedOccupancyStatesMax = 8;

// The section "occupancy" of one image: a line for each question. Any thread. Lock: mutex_, held around the store's.
class ProfiledOccupancyQuestions {
 public:
  explicit ProfiledOccupancyQuestions(std::shared_ptr<WarmStart> image) : image_(std::move(image)) {}

  // Returns the recorded questions about a function in a state for the first caller, and nothing for later ones.
  std::vector<OccupancyQuestion> ahead(std::string_view function, std::string_view state);
  // Returns the recorded states of a function that are certain and have settings.
  std::vector<std::string> states(std::string_view function);

  // Records a question that the program has sent to the server. A single question about a function is worth its record,
  // too: it is sent with the function when that is prefetched (prefetched_images.hpp).
  void asked(std::string_view function, std::string_view state, const OccupancyQuestion& question);

 private:
  void read_once() REQUIRES(mutex_);

  const std::shared_ptr<WarmStart> image_;
  Mutex mutex_;
  bool read_ GUARDED_BY(mutex_) = false;
  // Lines.
  std::set<std::string, std::less<>> known_ GUARDED_BY(mutex_);
  // The functions about which the program has asked, with their states.
  std::set<std::pair<std::string, std::string>> begun_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
