#include "server/software_device/driver/module/program_image.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {
namespace {

using Texts = std::vector<std::string>;

// The separator between the texts of linked_image().
constexpr char kNextText[] = "\n//gpuwire: the next of the linked texts\n";

tl::unexpected<ImageError> fail(CUresult result, std::string log) {
  return tl::unexpected(ImageError{result, std::move(log)});
}

tl::expected<std::string, ImageError> ptx_of_container(const void* container) {
  const auto bytes = fatbin::span_of_trusted_image(container);
  if (!bytes) {
    return fail(CUDA_ERROR_INVALID_IMAGE, bytes.error().message);
  }
  const auto entries = fatbin::read_container(*bytes);
  if (!entries) {
    return fail(CUDA_ERROR_INVALID_IMAGE, entries.error().message);
  }
  const fatbin::Entry* const entry = fatbin::select_entry(*entries, {kComputeMajor, kComputeMinor}, true);
  if (entry == nullptr) {
    return fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "the fat binary holds no PTX for compute capability " +
                                                  std::to_string(kComputeMajor) + "." + std::to_string(kComputeMinor) +
                                                  " or below");
  }
  const auto text = fatbin::decompress(*entry);
  if (!text) {
    return fail(CUDA_ERROR_INVALID_IMAGE, text.error().message);
  }
  return std::string(text->begin(), text->end());
}

// Returns the PTX of a wrapper. With -rdc=true the wrapper's own container has a linked cubin only, and the PTX is in
// the containers from which it was linked.
tl::expected<Texts, ImageError> ptx_of_wrapper(const void* wrapper) {
  const auto containers = fatbin::wrapped_containers(wrapper);
  if (!containers) {
    return fail(CUDA_ERROR_INVALID_IMAGE, containers.error().message);
  }
  if (containers->linked_from.empty()) {
    return ptx_of_container(containers->container).map([](std::string text) { return Texts{std::move(text)}; });
  }
  Texts texts;
  for (const void* const container : containers->linked_from) {
    auto text = ptx_of_container(container);
    if (!text) {
      return tl::unexpected(text.error());
    }
    texts.push_back(*std::move(text));
  }
  return texts;
}

tl::expected<Texts, ImageError> ptx_of_text(const void* image) {
  std::string text(static_cast<const char*>(image));
  if (text.find(".version") == std::string::npos) {
    return fail(CUDA_ERROR_INVALID_IMAGE, "neither PTX nor a program image");
  }
  Texts texts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(kNextText, begin), text.size());
    texts.push_back(text.substr(begin, end - begin));
    begin = end + sizeof kNextText - 1;
  }
  return texts;
}

tl::expected<Texts, ImageError> ptx_of_image(const void* image) {
  const char* const start = static_cast<const char*>(image);
  switch (fatbin::image_kind({reinterpret_cast<const uint8_t*>(start), strnlen(start, 4)})) {
    case fatbin::ImageKind::wrapper: return ptx_of_wrapper(image);
    case fatbin::ImageKind::container:
      return ptx_of_container(image).map([](std::string text) { return Texts{std::move(text)}; });
    case fatbin::ImageKind::elf:
      return fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "a cubin holds code of another machine: PTX is needed");
    case fatbin::ImageKind::text: return ptx_of_text(image);
  }
  return fail(CUDA_ERROR_INVALID_IMAGE, "unknown image");
}

// Compiled programs in use, by their texts: a module that is loaded into several contexts, or repeatedly, is compiled
// once.
std::mutex compiled_mutex;
std::map<Texts, std::weak_ptr<const Program>>& compiled_programs() {
  static auto* const programs = new std::map<Texts, std::weak_ptr<const Program>>;
  return *programs;
}

std::shared_ptr<const Program> find_compiled(const Texts& texts) {
  const std::lock_guard lock(compiled_mutex);
  const auto found = compiled_programs().find(texts);
  return found == compiled_programs().end() ? nullptr : found->second.lock();
}

void keep_compiled(const Texts& texts, const std::shared_ptr<const Program>& program) {
  const std::lock_guard lock(compiled_mutex);
  std::erase_if(compiled_programs(), [](const auto& row) { return row.second.expired(); });
  compiled_programs()[texts] = program;
}

}  // namespace

std::string linked_image(const std::vector<std::string>& texts) {
  std::string image;
  for (const std::string& text : texts) {
    image += image.empty() ? text : kNextText + text;
  }
  return image;
}

tl::expected<std::shared_ptr<const Program>, ImageError> load_image(const void* image) {
  const auto texts = ptx_of_image(image);
  if (!texts) {
    if (texts.error().result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
      log_refusal(texts.error().log);
    }
    return tl::unexpected(texts.error());
  }
  if (auto program = find_compiled(*texts); program != nullptr) {
    return program;
  }
  const std::vector<std::string_view> views(texts->begin(), texts->end());
  auto program = compile_ptx(views);
  if (!program) {
    // Only missing features of this device are logged: an error in the text is the program's own.
    if (program.error().kind == CompileError::Kind::unsupported) {
      log_refusal(program.error().log);
    }
    return fail(CUDA_ERROR_INVALID_PTX, program.error().log);
  }
  keep_compiled(*texts, *program);
  return *std::move(program);
}

}  // namespace gpuwire::software_device
