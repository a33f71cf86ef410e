// The driver's linker. The client names inputs by their digests, like program images; the server returns the logs and
// the linked image.
#include <algorithm>
#include <memory>

#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/process/files.hpp"
#include "client_stub/driver/state/copy/transfer.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// The server may drop an input between its arrival and its use.
constexpr int kAddAttemptsMax = 3;

// A CUlinkState. The program's buffers and its array of option values stay valid until the linker ends (cuda.h,
// cuLinkCreate).
struct Linker {
  uint64_t handle = 0;
  LoadOptions options;
  std::vector<std::byte> image;
  // The parameters of the inputs' kernels.
  fatbin::KernelParameterTable parameters;
};

Linker* find(CUlinkState state) {
  return handles().find<Linker>(wire::HandleKind::link_state, reinterpret_cast<uint64_t>(state));
}

std::string_view log_text(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

// Reads the logs from a reply, and the fields that only some replies have.
struct Reply {
  Linker& linker;
  bool missing = false;
  uint64_t image_bytes = 0;

  void operator()(schema::LinkReply::Reader results) {
    missing = results.getMissing();
    image_bytes = results.getImageBytes();
    if (!missing)
      linker.options.store_logs(log_text(results.getErrorLog()), log_text(results.getInfoLog()),
                                results.getWallTimeMs());
  }
};

CUresult add(const Caller& caller, Linker& linker, CUjitInputType type, const ProgramImage& input, const char* name,
             const LoadOptions& options) {
  const std::string_view given = name ? name : "";
  if (input.bytes() > wire::kModuleBytesMax || given.size() >= wire::kNameBytesMax) return CUDA_ERROR_INVALID_VALUE;
  for (int attempt = 0; attempt < kAddAttemptsMax; ++attempt) {
    Reply reply{linker};
    CUresult result = send::call_link_add(*caller.session, caller.context,
                                          {.state = linker.handle,
                                           .type = int32_t(type),
                                           .digest = input.digest(),
                                           .name = given,
                                           .jit_options = options.jit},
                                          reply);
    if (!reply.missing) {
      if (!result) linker.parameters.merge(input.kernel_parameters());
      return result;
    }
    if (CUresult error = deliver_image(caller, input)) return error;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult fetch_image(const Caller& caller, Linker& linker) {
  for (size_t offset = 0; offset < linker.image.size(); offset += kPieceBytes) {
    BulkSink sink{.data = linker.image.data() + offset, .bytes = std::min(kPieceBytes, linker.image.size() - offset)};
    CUresult error = send::call_link_image(*caller.session, caller.context,
                                           {.state = linker.handle, .offset = offset, .bytes = sink.bytes}, sink);
    if (error) return error;
  }
  return CUDA_SUCCESS;
}

// Returns the part of the linked image that a load will read, by the image's own lengths. Returns nothing if the image
// is not a linker's output, or claims more bytes than it has: a load would read, and send, the memory behind it.
std::span<const uint8_t> loadable(std::span<const uint8_t> made) {
  constexpr size_t kKindBytes = 8;
  switch (fatbin::image_kind(made.first(std::min(made.size(), kKindBytes)))) {
    case fatbin::ImageKind::elf: {
      const auto bytes = fatbin::elf_bytes(made);
      return bytes && *bytes <= made.size() ? made.first(*bytes) : std::span<const uint8_t>();
    }
    case fatbin::ImageKind::text: {
      const auto end = std::find(made.begin(), made.end(), 0);
      return end == made.end() ? std::span<const uint8_t>() : made.first(size_t(end - made.begin()) + 1);
    }
    case fatbin::ImageKind::wrapper:
    case fatbin::ImageKind::container: break;
  }
  return {};
}

// The linker and the parsed options of a call.
struct BegunLink {
  Linker* linker;
  LoadOptions options;
  CUresult error;

  BegunLink(CUlinkState state, unsigned count, const CUjit_option* names, void** values)
      : linker(find(state)), error(linker ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE) {
    if (!error) error = LoadOptions::parse(count, names, values, options);
  }
};

}  // namespace

namespace hand {

CUresult cuLinkCreate_v2(const Caller& caller, unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  if (!stateOut) return CUDA_ERROR_INVALID_VALUE;
  auto linker = std::make_unique<Linker>();
  if (CUresult error = LoadOptions::parse(numOptions, options, optionValues, linker->options)) return error;
  linker->handle = handles().create(wire::HandleKind::link_state, caller.server);
  if (!linker->handle) return CUDA_ERROR_OUT_OF_MEMORY;
  const LoadOptions& own = linker->options;
  Reply reply{*linker};
  CUresult result = send::call_link_create(*caller.session, caller.context,
                                           {.state = linker->handle,
                                            .jit_options = own.jit,
                                            .error_log_bytes = own.error_log_bytes,
                                            .info_log_bytes = own.info_log_bytes},
                                           reply);
  if (result) {
    handles().forget(wire::HandleKind::link_state, linker->handle);
    return result;
  }
  *stateOut = reinterpret_cast<CUlinkState>(linker->handle);
  handles().attach(wire::HandleKind::link_state, linker->handle, linker.get());
  linker.release();
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(const Caller& caller, CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int numOptions, CUjit_option* options, void** optionValues) {
  BegunLink begun(state, numOptions, options, optionValues);
  if (begun.error) return begun.error;
  if (!data || size == 0) return CUDA_ERROR_INVALID_VALUE;
  auto input = ProgramImage::whole({static_cast<const uint8_t*>(data), size});
  return add(caller, *begun.linker, type, *input, name, begun.options);
}

CUresult cuLinkAddFile_v2(const Caller& caller, CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options, void** optionValues) {
  BegunLink begun(state, numOptions, options, optionValues);
  if (begun.error) return begun.error;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint8_t> contents;
  if (CUresult error = read_program_file(path, contents)) return error;
  if (type == CU_JIT_INPUT_PTX) contents.push_back(0);
  auto input = ProgramImage::whole(contents);
  return add(caller, *begun.linker, type, *input, path, begun.options);
}

// The older forms differ only in their names.
CUresult cuLinkCreate(const Caller& caller, unsigned int numOptions, CUjit_option* options, void** optionValues,
                      CUlinkState* stateOut) {
  return hand::cuLinkCreate_v2(caller, numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData(const Caller& caller, CUlinkState state, CUjitInputType type, void* data, size_t size,
                       const char* name, unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return hand::cuLinkAddData_v2(caller, state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile(const Caller& caller, CUlinkState state, CUjitInputType type, const char* path,
                       unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return hand::cuLinkAddFile_v2(caller, state, type, path, numOptions, options, optionValues);
}

CUresult cuLinkComplete(const Caller& caller, CUlinkState state, void** cubinOut, size_t* sizeOut) {
  BegunLink begun(state, 0, nullptr, nullptr);
  if (begun.error) return begun.error;
  if (!cubinOut) return CUDA_ERROR_INVALID_VALUE;
  Linker& linker = *begun.linker;
  Reply reply{linker};
  CUresult result = send::call_link_complete(*caller.session, caller.context, {.state = linker.handle}, reply);
  if (!result && reply.image_bytes > wire::kModuleBytesMax) result = CUDA_ERROR_OUT_OF_MEMORY;
  if (!result) {
    linker.image.resize(reply.image_bytes);
    result = fetch_image(caller, linker);
  }
  const auto made = loadable({reinterpret_cast<const uint8_t*>(linker.image.data()), linker.image.size()});
  if (!result && made.empty()) result = CUDA_ERROR_INVALID_IMAGE;
  if (!result) {
    linked_images().add(ProgramImage::whole(made)->digest(),
                        std::make_shared<const fatbin::KernelParameterTable>(linker.parameters));
    *cubinOut = linker.image.data();
    if (sizeOut) *sizeOut = linker.image.size();
  }
  return result;
}

CUresult cuLinkDestroy(const Caller& caller, CUlinkState state) {
  BegunLink begun(state, 0, nullptr, nullptr);
  if (begun.error) return begun.error;
  const std::unique_ptr<Linker> linker(begun.linker);
  handles().forget(wire::HandleKind::link_state, linker->handle);
  CUresult result = send::call_link_destroy(*caller.session, caller.context, {.state = linker->handle});
  return result;
}

}  // namespace hand
}  // namespace gpuwire::client
