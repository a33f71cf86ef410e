// The linker: combines PTX texts that refer to each other into one image for cuModuleLoadData.
#include "server/software_device/driver/module/link.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/module/jit_options.hpp"
#include "server/software_device/driver/module/program_image.hpp"
#include "server/software_device/driver/call/refusal.hpp"
#include "server/software_device/execution/engine.hpp"
#include "server/software_device/ptx/parser.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr uint64_t kLinkKind = 64;  // beyond the values of HandleKind

// Relaxed: the flag publishes nothing.
constinit std::atomic<bool> strict_links{false};

// Returns the calling thread's number. Unlike std::thread::id, it is never reused.
uint64_t thread_number() noexcept {
  static constinit std::atomic<uint64_t> last{0};  // relaxed: only a counter
  thread_local const uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

struct Link {
  const uint64_t thread = thread_number();  // the thread that created the link
  JitOptions options;
  std::vector<std::string> texts;
  std::string image;  // set by cuLinkComplete
};

HandleTable<CUlinkState, Link>& links() {
  // A kind of their own, so that no other function accepts these handles.
  static auto* const table = new HandleTable<CUlinkState, Link>(HandleKind{kLinkKind});
  return *table;
}

bool usable_here(const Link& link) noexcept {
  if (!strict_links.load(std::memory_order_relaxed) || link.thread == thread_number()) {
    return true;
  }
  log_refusal("a link is used on another thread than the one that made it, which may end a process on NVIDIA's driver");
  return false;
}

template <typename Body>
CUresult with_link(CUlinkState state, Body&& body) noexcept {
  const auto link = links().find(state);
  return with_arguments_first(
      [&] { return link == nullptr || !usable_here(*link) ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS; },
      [&](Context&) -> CUresult { return body(*link); });
}

CUresult add_text(Link& link, CUjitInputType type, std::string text, const char* name) {
  if (type != CU_JIT_INPUT_PTX) {
    constexpr std::string_view kReason = "only PTX can be linked: other inputs hold code of another machine";
    log_refusal(kReason);
    link.options.write_error_log(kReason);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
  if (const auto parsed = ptx::parse(text); !parsed) {
    link.options.write_error_log(std::string(name == nullptr ? "ptx" : name) + ":" +
                                 std::to_string(parsed.error().line) + ": error: " + parsed.error().message);
    return CUDA_ERROR_INVALID_PTX;
  }
  link.texts.push_back(std::move(text));
  return CUDA_SUCCESS;
}

}  // namespace

namespace gpuwire::software_device {

void set_strict_links(bool strict) noexcept { strict_links.store(strict, std::memory_order_relaxed); }

}  // namespace gpuwire::software_device

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* options, void** values, CUlinkState* out) {
  return with_context([&](Context&) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto link = std::make_shared<Link>();
    if (const CUresult result = link->options.parse(count, options, values); result != CUDA_SUCCESS) {
      return result;
    }
    const CUlinkState handle = links().reserve();
    links().insert(handle, std::move(link));
    *out = handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                          unsigned int, CUjit_option*, void**) {
  return with_link(state, [&](Link& link) -> CUresult {
    if (data == nullptr || bytes == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return add_text(link, type, std::string(static_cast<const char*>(data), bytes), name);
  });
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int, CUjit_option*,
                          void**) {
  return with_link(state, [&](Link& link) -> CUresult {
    if (path == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto contents = read_image_file(path);
    return contents ? add_text(link, type, std::string(contents->begin(), contents->end()), path)
                    : CUDA_ERROR_FILE_NOT_FOUND;
  });
}

CUresult cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
  return with_link(state, [&](Link& link) -> CUresult {
    if (image == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::vector<std::string_view> views(link.texts.begin(), link.texts.end());
    if (const auto program = compile_ptx(views); !program) {
      if (program.error().kind == CompileError::Kind::unsupported) {
        log_refusal(program.error().log);
      }
      link.options.write_error_log(program.error().log);
      return CUDA_ERROR_UNKNOWN;  // each text is valid by itself
    }
    link.image = linked_image(link.texts);
    *image = link.image.data();
    if (bytes != nullptr) {
      *bytes = link.image.size() + 1;  // with the zero, so that it can be loaded as it is
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return with_link(state, [&](Link&) {
    links().take(state);
    return CUDA_SUCCESS;
  });
}
