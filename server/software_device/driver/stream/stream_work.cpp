#include "server/software_device/driver/stream/stream_work.hpp"

#include <atomic>
#include <cstring>
#include <optional>

#include "server/software_device/driver/stream/capture_rules.hpp"
#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/copy/copy_request.hpp"
#include "server/software_device/driver/stream/memory_operations.hpp"
#include "server/software_device/driver/stream/work_observer.hpp"

namespace gpuwire::software_device {
namespace {

CUresult copy(const CopyWork& work) {
  for (size_t slice = 0; slice < work.depth; ++slice) {
    for (size_t row = 0; row < work.height; ++row) {
      // Source and target of a program's copy may overlap. The result is then undefined, but must not crash.
      std::memmove(reinterpret_cast<uint8_t*>(work.target) + slice * work.target_slice + row * work.target_pitch,
                   reinterpret_cast<const uint8_t*>(work.source) + slice * work.source_slice + row * work.source_pitch,
                   work.width_bytes);
    }
  }
  return CUDA_SUCCESS;
}

template <typename Element>
void fill_row(uint8_t* row, size_t count, uint32_t value) {
  auto* const elements = reinterpret_cast<Element*>(row);
  for (size_t i = 0; i < count; ++i) {
    elements[i] = static_cast<Element>(value);
  }
}

// Returns whether the fill writes a single word, which may be host memory that another thread watches (the gate's marks
// of running work, `server/gate`). A thread that sees the word must see all earlier work, as with a device's writes.
bool is_watchable(const FillWork& work) {
  return work.element_bytes == sizeof(uint32_t) && work.width == 1 && work.height == 1 &&
         work.target % sizeof(uint32_t) == 0;
}

CUresult fill(const FillWork& work) {
  if (is_watchable(work)) {
    std::atomic_ref(*reinterpret_cast<uint32_t*>(work.target)).store(work.value, std::memory_order_release);
    return CUDA_SUCCESS;
  }
  for (size_t row = 0; row < work.height; ++row) {
    auto* const start = reinterpret_cast<uint8_t*>(work.target) + row * work.pitch;
    switch (work.element_bytes) {
      case 1: std::memset(start, static_cast<int>(work.value & 0xFF), work.width); break;
      case 2: fill_row<uint16_t>(start, work.width, work.value); break;
      default: fill_row<uint32_t>(start, work.width, work.value); break;
    }
  }
  return CUDA_SUCCESS;
}

CUresult result_of(Fault fault) {
  switch (fault) {
    case Fault::none: return CUDA_SUCCESS;
    case Fault::illegal_address: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Fault::misaligned_address: return CUDA_ERROR_MISALIGNED_ADDRESS;
    case Fault::invalid_address_space: return CUDA_ERROR_INVALID_ADDRESS_SPACE;
    case Fault::invalid_pc: return CUDA_ERROR_INVALID_PC;
    case Fault::assert_failed: return CUDA_ERROR_ASSERT;
    case Fault::trap: return CUDA_ERROR_LAUNCH_FAILED;
    case Fault::stack_overflow: return CUDA_ERROR_LAUNCH_FAILED;
    case Fault::illegal_instruction: return CUDA_ERROR_ILLEGAL_INSTRUCTION;
    case Fault::cancelled: return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return CUDA_ERROR_UNKNOWN;
}

// Returns whether the text is an assertion's. The engine passes assertions and printf output to one function; only
// assertions have this form, and a printf that imitates it does no harm.
bool is_assertion(std::string_view text) {
  return text.find(" Assertion `") != std::string_view::npos && text.find("` failed.") != std::string_view::npos;
}

CUresult launch(Context& context, const KernelWork& work) {
  Limits limits;
  {
    const std::lock_guard lock(context.settings_mutex);
    limits = context.limits;
  }
  const Launch launch{
      .program = work.function->program.get(),
      .kernel = work.function->index,
      .grid = work.grid,
      .block = work.block,
      .cluster = work.cluster,
      .explicit_cluster = work.explicit_cluster,
      .dynamic_shared_bytes = work.dynamic_shared_bytes,
      .cooperative = work.cooperative,
      .parameters = work.parameters,
      .variable_addresses = work.module->variable_addresses(),
      .memory = &context.memory,
      .heap = &context.heap,
      .images = &driver().images,
      .stack_bytes_per_thread = limits.stack_bytes,
      .print =
          [&](std::string_view text) {
            if (is_assertion(text)) {
              write_output(kStderr, text);
            } else {
              context.output.append(text, limits.printf_fifo_bytes);
            }
          },
      .set_condition =
          [](uint64_t handle, uint32_t value) {
            if (const auto condition = find_condition(handle)) {
              condition->value.store(value, std::memory_order_relaxed);
            }
          },
      .cancelled = [&] { return context.cancelled(); },
      .sm_count = kMultiprocessors,
      .device_sm = kComputeMajor * 10 + kComputeMinor,
      .processors = work.processors,
  };
  const LaunchResult result = driver().engine->run(launch);
  if (result.fault != Fault::none && result.fault != Fault::cancelled) {
    write_output(kStderr, "gpuwire software device: " + result.message + "\n");
  }
  return result_of(result.fault);
}

CUresult carry_out_all(Context& context, const std::vector<Work>& body) {
  for (const Work& work : body) {
    if (const CUresult result = carry_out(context, work); result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

CUresult decide(Context& context, const ConditionalWork& work) {
  const auto& bodies = work.bodies->work;
  const auto value = [&] { return work.condition->value.load(std::memory_order_relaxed); };
  CUresult result = CUDA_SUCCESS;
  switch (work.type) {
    case CU_GRAPH_COND_TYPE_IF: {
      const size_t chosen = value() != 0 ? 0 : 1;
      return chosen < bodies.size() ? carry_out_all(context, bodies[chosen]) : CUDA_SUCCESS;
    }
    case CU_GRAPH_COND_TYPE_WHILE:
      while (result == CUDA_SUCCESS && value() != 0 && !context.cancelled()) {
        result = carry_out_all(context, bodies[0]);
      }
      return result;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return value() < bodies.size() ? carry_out_all(context, bodies[value()]) : CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

struct Carrier {
  Context& context;
  CUresult operator()(const EmptyWork&) const { return CUDA_SUCCESS; }
  CUresult operator()(const CopyWork& work) const { return copy(work); }
  CUresult operator()(const FillWork& work) const {
    return work.checked || check_fill(work) == CUDA_SUCCESS ? fill(work) : CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  CUresult operator()(const KernelWork& work) const { return launch(context, work); }
  CUresult operator()(const HostWork& work) const {
    work.function(work.user);
    return CUDA_SUCCESS;
  }
  CUresult operator()(const MemoryOperationsWork& work) const { return carry_out_memory_operations(context, work); }
  CUresult operator()(const ConditionalWork& work) const { return decide(context, work); }
};

// Returns the observer's data about the work, without times, or nothing for work that does not occupy a GPU.
std::optional<ObservedWork> observed(const Work& work) {
  if (const auto* kernel = std::get_if<KernelWork>(&work))
    return ObservedWork{.kind = kObservedKernel, .name = kernel->function->info().name.c_str()};
  if (const auto* copy = std::get_if<CopyWork>(&work))
    return ObservedWork{.kind = kObservedCopy, .bytes = uint64_t(copy->width_bytes) * copy->height * copy->depth};
  if (const auto* fill = std::get_if<FillWork>(&work))
    return ObservedWork{.kind = kObservedFill, .bytes = uint64_t(fill->width) * fill->height * fill->element_bytes};
  return std::nullopt;
}

uint64_t number_for(const Work& work) {
  const WorkObserver* observer = work_observer();
  return observer != nullptr && observed(work) ? observer->given(observer->user) : 0;
}

// `number` is the result of number_for(); 0: there is no observer.
CUresult carry_out_observed(Context& context, const Work& work, uint64_t stream, uint64_t number) {
  if (number == 0) {
    return carry_out_in_turn(context, work, stream);
  }
  ObservedWork told = *observed(work);
  told.number = number;
  told.start_ns = observed_now_ns();
  const CUresult result = carry_out_in_turn(context, work, stream);
  told.end_ns = observed_now_ns();
  const WorkObserver* observer = work_observer();
  observer->done(observer->user, &told);
  return result;
}

}  // namespace

CUresult carry_out(Context& context, const Work& work) { return std::visit(Carrier{context}, work); }

CUresult carry_out_in_turn(Context& context, const Work& work, uint64_t stream) {
  driver().slow_work.pause(stream);
  return carry_out(context, work);
}

CUresult enqueue(Context& context, Stream& stream, Work work) {
  if (is_capturing(stream)) {
    return capture_work(context, stream,
                        std::visit([](auto&& each) { return NodePayload(std::move(each)); }, std::move(work)));
  }
  const uint64_t number = number_for(work);
  context.submit(stream, [&context, work = std::move(work), id = uint64_t{stream.id}, number] {
    return carry_out_observed(context, work, id, number);
  });
  return CUDA_SUCCESS;
}

CUresult enqueue_and_wait(Context& context, Stream& stream, const Work& work) {
  if (is_capturing(stream)) {
    return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  const uint64_t number = number_for(work);
  return context.run(stream, [&] { return carry_out_observed(context, work, stream.id, number); });
}

}  // namespace gpuwire::software_device
