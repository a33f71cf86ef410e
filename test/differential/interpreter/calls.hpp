// Every call that a sequence can make, by its name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"

namespace differential {

struct Outcome {
  bool success = false;
  std::string name;  // of the result
};

// Throws std::runtime_error for a name that is unknown, or a wrong number of arguments.
Outcome make_call(std::string_view name, const std::vector<Argument>& arguments);

// The two halves of make_call(): each returns whether it knows the name.
bool make_driver_call(std::string_view name, const std::vector<Argument>& arguments, Outcome& outcome);
bool make_runtime_call(std::string_view name, const std::vector<Argument>& arguments, Outcome& outcome);

// Calls a function with the arguments, each converted to its parameter's type.
template <class Result, class... Parameters, size_t... Index>
Result invoke_each(Result (*function)(Parameters...), const std::vector<Argument>& arguments,
                   std::index_sequence<Index...>) {
  return function(arguments[Index].template as<Parameters>()...);
}
template <class Result, class... Parameters>
Result invoke(Result (*function)(Parameters...), const std::vector<Argument>& arguments) {
  if (arguments.size() != sizeof...(Parameters)) throw std::runtime_error("a call with a wrong number of arguments");
  return invoke_each(function, arguments, std::index_sequence_for<Parameters...>{});
}

}  // namespace differential
