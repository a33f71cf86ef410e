// The common part of the programs that print figures as one JSON object: medians over rounds, and the duration of a
// measurement.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

inline double seconds_of(const std::function<void()>& body) {
  auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The duration of a figure's measurement. The first calls of a session touch memory for the first time, on both sides;
// a loop of some milliseconds without a warm-up would measure mainly this.
struct Pace {
  double warm_up_seconds = 0.1, measured_seconds = 0.3;
  // The bound of the number of rounds that a figure requests.
  int rounds_max = std::numeric_limits<int>::max();
};
// --short: whole tables in a few seconds. --quick: a few rounds of each figure, to try a program out.
constexpr Pace kShortPace{.warm_up_seconds = 0.004, .measured_seconds = 0.02, .rounds_max = 5};
constexpr Pace kQuickPace{.warm_up_seconds = 0, .measured_seconds = 0, .rounds_max = 3};

// Prints `{"name": value, ...}`, from its construction to its destruction.
class Figures {
 public:
  Figures() { std::printf("{"); }
  Figures(const Figures&) = delete;
  Figures& operator=(const Figures&) = delete;
  ~Figures() { std::printf("}\n"); }

  void set_pace(const Pace& pace) { pace_ = pace; }

  void add(const std::string& name, double value) {
    std::printf("%s\"%s\": %.4f", first_ ? "" : ", ", name.c_str(), value);
    first_ = false;
  }

  // Returns the median time of at least `rounds` rounds, or as many as the pace allows, after a warm-up.
  double median_seconds(int rounds, const std::function<void()>& body) const {
    return median_seconds(
        rounds, [] {}, body);
  }
  // `before` runs before each round; its time does not count.
  double median_seconds(int rounds, const std::function<void()>& before, const std::function<void()>& body) const {
    double warm = 0;
    do warm += seconds_of(before) + seconds_of(body);
    while (warm < pace_.warm_up_seconds);
    rounds = std::min(rounds, pace_.rounds_max);
    std::vector<double> values;
    for (double measured = 0; rounds-- > 0 || measured < pace_.measured_seconds;) {
      measured += seconds_of(before);
      values.push_back(seconds_of(body));
      measured += values.back();
    }
    return median(values);
  }

 private:
  Pace pace_;
  bool first_ = true;
};

// Returns the pace that a program's arguments select.
inline Pace pace_of(int argc, char** argv) {
  Pace pace;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--short") == 0) pace = kShortPace;
    if (std::strcmp(argv[i], "--quick") == 0) pace = kQuickPace;
  }
  return pace;
}

inline bool has_option(int argc, char** argv, const char* option) {
  return std::any_of(argv + 1, argv + argc, [&](const char* each) { return std::strcmp(each, option) == 0; });
}
