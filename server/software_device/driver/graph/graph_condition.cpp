#include "server/software_device/driver/graph/graph_condition.hpp"

#include <map>
#include <mutex>

#include "server/software_device/driver/graph/graph_lookup.hpp"

namespace gpuwire::software_device {
namespace {

// Never destroyed, because graphs live as long as the process.
struct Conditions {
  std::mutex mutex;
  std::map<CUgraphConditionalHandle, std::weak_ptr<Condition>> conditions;
  CUgraphConditionalHandle next = 1;
};

Conditions& conditions_of_process() noexcept {
  static auto* const all = new Conditions;
  return *all;
}

}  // namespace

std::shared_ptr<Condition> make_condition(uint32_t initial, bool assign_initial) {
  auto condition = std::make_shared<Condition>();
  condition->initial = initial;
  condition->assign_initial = assign_initial;
  const std::lock_guard lock(conditions_of_process().mutex);
  std::erase_if(conditions_of_process().conditions, [](const auto& row) { return row.second.expired(); });
  condition->handle = conditions_of_process().next++;
  conditions_of_process().conditions[condition->handle] = condition;
  return condition;
}

std::shared_ptr<Condition> find_condition(CUgraphConditionalHandle handle) {
  const std::lock_guard lock(conditions_of_process().mutex);
  const auto found = conditions_of_process().conditions.find(handle);
  return found == conditions_of_process().conditions.end() ? nullptr : found->second.lock();
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph handle, CUcontext, unsigned int initial,
                                        unsigned int flags) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (out == nullptr || (flags & ~static_cast<unsigned>(CU_GRAPH_COND_ASSIGN_DEFAULT)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    graph.conditions.push_back(make_condition(initial, flags != 0));
    *out = graph.conditions.back()->handle;
    return CUDA_SUCCESS;
  });
}
