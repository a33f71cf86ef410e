#include "client_stub/driver/launch/known_occupancy_questions.hpp"

#include <optional>
#include <utility>

#include "client_stub/driver/launch/occupancy_settings.hpp"

namespace gpuwire::client {
namespace {

constexpr std::string_view kBetween = " of ";

// "STATE QUESTION of FUNCTION".
std::string line_of(std::string_view function, std::string_view state, const OccupancyQuestion& question) {
  return std::string(state).append(" ").append(question.text()).append(kBetween).append(function);
}

struct Line {
  std::string_view state, question, function;
};
std::optional<Line> parse(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(space + 1);
  const size_t end = rest.find(kBetween);
  if (end == std::string_view::npos) return std::nullopt;
  return Line{line.substr(0, space), rest.substr(0, end), rest.substr(end + kBetween.size())};
}

}  // namespace

void KnownOccupancyQuestions::read_once() {
  if (std::exchange(read_, true)) return;
  for (std::string& line : lines_.read()) {
    if (known_.size() == kOccupancyQuestionsKnownMax) return;
    known_.insert(std::move(line));
  }
}

std::vector<OccupancyQuestion> KnownOccupancyQuestions::ahead(std::string_view function, std::string_view state) {
  std::vector<OccupancyQuestion> out;
  if (!lines_.kept() || state.empty()) return out;
  std::lock_guard lock(mutex_);
  if (!begun_.emplace(state, function).second) return out;
  read_once();
  for (const std::string& text : known_) {
    const auto line = parse(text);
    if (!line || line->state != state || line->function != function) continue;
    if (auto question = OccupancyQuestion::parse(line->question)) out.push_back(std::move(*question));
    if (out.size() == kOccupancyQuestionsAheadMax) break;
  }
  return out;
}

std::vector<std::string> KnownOccupancyQuestions::states(std::string_view function) {
  std::vector<std::string> out;
  if (!lines_.kept()) return out;
  std::lock_guard lock(mutex_);
  read_once();
  for (const std::string& text : known_) {
    const auto line = parse(text);
    if (!line || line->function != function || (!out.empty() && out.back() == line->state)) continue;
    const auto settings = OccupancySettings::parse(line->state);
    if (!settings || settings->empty()) continue;
    if (out.size() == kOccupancyStatesAheadMax) break;
    out.emplace_back(line->state);  // lines are in order, so each state comes once
  }
  return out;
}

void KnownOccupancyQuestions::asked(std::string_view function, std::string_view state,
                                    const OccupancyQuestion& question) {
  if (!lines_.kept() || state.empty() || !question.travels() || !ImageLines::holds(function)) return;
  std::lock_guard lock(mutex_);
  read_once();
  if (known_.size() == kOccupancyQuestionsKnownMax) return;
  const std::string line = line_of(function, state, question);
  if (known_.insert(line).second) lines_.append(line + '\n');
}

}  // namespace gpuwire::client
