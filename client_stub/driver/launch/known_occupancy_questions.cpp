#include "client_stub/driver/launch/known_occupancy_questions.hpp"

#include <optional>
#include <utility>

namespace gpuwire::client {
namespace {

constexpr std::string_view kBetween = " of ";

// "SETTINGS QUESTION of FUNCTION".
std::string line_of(std::string_view function, uint64_t settings, const OccupancyQuestion& question) {
  return std::to_string(settings).append(" ").append(question.text()).append(kBetween).append(function);
}

}  // namespace

void KnownOccupancyQuestions::read_once() {
  if (std::exchange(read_, true)) return;
  for (std::string& line : lines_.read()) {
    if (known_.size() == kOccupancyQuestionsKnownMax) return;
    known_.insert(std::move(line));
  }
}

std::vector<OccupancyQuestion> KnownOccupancyQuestions::ahead(std::string_view function, uint64_t settings) {
  std::vector<OccupancyQuestion> out;
  if (!lines_.kept() || settings > kOccupancySettingsMax) return out;
  std::lock_guard lock(mutex_);
  if (!begun_.emplace(settings, function).second) return out;
  read_once();
  const std::string beginning = std::to_string(settings) + " ";
  for (std::string_view line : known_) {
    if (!line.starts_with(beginning)) continue;
    line.remove_prefix(beginning.size());
    const size_t end = line.find(kBetween);
    if (end == std::string_view::npos || line.substr(end + kBetween.size()) != function) continue;
    if (auto question = OccupancyQuestion::parse(line.substr(0, end))) out.push_back(std::move(*question));
    if (out.size() == kOccupancyQuestionsAheadMax) break;
  }
  return out;
}

void KnownOccupancyQuestions::asked(std::string_view function, uint64_t settings, const OccupancyQuestion& question) {
  if (!lines_.kept() || settings > kOccupancySettingsMax || !question.travels() || !ImageLines::holds(function)) return;
  std::lock_guard lock(mutex_);
  read_once();
  if (known_.size() == kOccupancyQuestionsKnownMax) return;
  const std::string line = line_of(function, settings, question);
  if (known_.insert(line).second) lines_.append(line + '\n');
}

}  // namespace gpuwire::client
