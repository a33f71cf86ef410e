#include "server/replay/module/tried_attributes.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "protocol/wire/handle.hpp"
#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {
namespace {

// The attributes that the driver can restore: their reported values can be set again.
constexpr std::array kTriable = {
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE};

struct Function {
  wire::HandleKind kind;
  void* native;
  CUdevice device;

  CUresult get(const DriverTable& driver, CUfunction_attribute attribute, int& value) const {
    return kind == wire::HandleKind::kernel
               ? drive(driver.cuKernelGetAttribute, &value, attribute, static_cast<CUkernel>(native), device)
               : drive(driver.cuFuncGetAttribute, &value, attribute, static_cast<CUfunction>(native));
  }
  CUresult set(const DriverTable& driver, const TriedAttributes::Setting& setting) const {
    return kind == wire::HandleKind::kernel
               ? drive(driver.cuKernelSetAttribute, setting.attribute, setting.value, static_cast<CUkernel>(native),
                       device)
               : drive(driver.cuFuncSetAttribute, static_cast<CUfunction>(native), setting.attribute, setting.value);
  }
};

}  // namespace

void TriedAttributes::put_back(Replay& replay) {
  const Function function{wire::handle_kind(handle_), function_, device_};
  void* native = nullptr;
  const bool alive = handle_ && replay.handles().find(function.kind, handle_, native) && native == function_;
  for (; alive && !earlier_.empty(); earlier_.pop_back()) {
    if (CUresult error = function.set(replay.driver(), earlier_.back())) not_put_back_ = error;
  }
  earlier_.clear();
  handle_ = 0;
}

CUresult TriedAttributes::try_out(Replay& replay, uint64_t handle, const std::vector<Setting>& settings) {
  put_back(replay);
  if (settings.empty()) return std::exchange(not_put_back_, CUDA_SUCCESS);
  if (not_put_back_) return not_put_back_;
  Function function{wire::handle_kind(handle), nullptr, 0};
  if (function.kind != wire::HandleKind::function && function.kind != wire::HandleKind::kernel)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!replay.handles().find(function.kind, handle, function.native)) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = drive(replay.driver().cuCtxGetDevice, &function.device)) return error;
  handle_ = handle;
  function_ = function.native;
  device_ = function.device;
  CUresult result = CUDA_SUCCESS;
  for (const Setting& setting : settings) {
    Setting before{setting.attribute, 0};
    result = std::find(kTriable.begin(), kTriable.end(), setting.attribute) == kTriable.end()
                 ? CUDA_ERROR_INVALID_VALUE
                 : function.get(replay.driver(), setting.attribute, before.value);
    if (!result) result = function.set(replay.driver(), setting);
    if (result) break;
    earlier_.push_back(before);
  }
  if (result) put_back(replay);
  return result;
}

void function_try(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::FunctionTry>();
  const auto attributes = params.getAttributes();
  const auto values = params.getValues();
  if (attributes.size() != values.size() || attributes.size() > wire::kTriedAttributesMax)
    throw ProtocolFault{"function_try: lists of impossible lengths"};
  std::vector<TriedAttributes::Setting> settings;
  for (unsigned i = 0; i < attributes.size(); ++i) settings.push_back({CUfunction_attribute(attributes[i]), values[i]});
  finish(replay, call, replay.state().tried_attributes().try_out(replay, params.getFunction(), settings));
}

}  // namespace gpuwire::server
