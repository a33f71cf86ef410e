#include "client_stub/driver/state/warm_start/profiled_occupancy_questions.hpp"

#include <optional>
#include <utility>

#include "client_stub/driver/state/launch/occupancy_settings.hpp"

namespace gpuwire::client {
namespace {

constexpr std::string_view kBeforeFunction = " of ";

// "STATE QUESTION of FUNCTION".
std::string line_of(std::string_view function, std::string_view state, const OccupancyQuestion& question) {
  return std::string(state).append(" ").append(question.text()).append(kBeforeFunction).append(function);
}

struct AskedLine {
  std::string_view state, question, function;
};
std::optional<AskedLine> asked_of(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(space + 1);
  const size_t end = rest.find(kBeforeFunction);
  if (end == std::string_view::npos) return std::nullopt;
  return AskedLine{line.substr(0, space), rest.substr(0, end), rest.substr(end + kBeforeFunction.size())};
}

}  // namespace

void ProfiledOccupancyQuestions::read_once() {
  if (std::exchange(read_, true)) return;
  for (std::string& line : image_->lines(WarmStartSection::occupancy)) {
    if (known_.size() == kProfiledOccupancyQuestionsMax) return;
    known_.insert(std::move(line));
  }
}

std::vector<OccupancyQuestion> ProfiledOccupancyQuestions::ahead(std::string_view function, std::string_view state) {
  std::vector<OccupancyQuestion> out;
  if (!image_->kept() || state.empty()) return out;
  MutexLock lock(mutex_);
  if (!begun_.emplace(state, function).second) return out;
  read_once();
  for (const std::string& text : known_) {
    const auto line = asked_of(text);
    if (!line || line->state != state || line->function != function) continue;
    if (auto question = OccupancyQuestion::parse(line->question)) out.push_back(std::move(*question));
    if (out.size() == kPrefetchedOccupancyQuestionsMax) break;
  }
  return out;
}

std::vector<std::string> ProfiledOccupancyQuestions::states(std::string_view function) {
  std::vector<std::string> out;
  if (!image_->kept()) return out;
  MutexLock lock(mutex_);
  read_once();
  for (const std::string& text : known_) {
    const auto line = asked_of(text);
    if (!line || line->function != function || (!out.empty() && out.back() == line->state)) continue;
    const auto settings = OccupancySettings::parse(line->state);
    if (!settings || settings->empty()) continue;
    if (out.size() == kPrefetchedOccupancyStatesMax) break;
    out.emplace_back(line->state);  // lines are in order, so each state comes once
  }
  return out;
}

void ProfiledOccupancyQuestions::asked(std::string_view function, std::string_view state,
                                       const OccupancyQuestion& question) {
  if (!image_->kept() || state.empty() || !question.travels() || !WarmStart::holds(function)) return;
  MutexLock lock(mutex_);
  read_once();
  if (known_.size() == kProfiledOccupancyQuestionsMax) return;
  const auto [line, added] = known_.insert(line_of(function, state, question));
  if (added) image_->add(WarmStartSection::occupancy, *line, true);
}

}  // namespace gpuwire::client
