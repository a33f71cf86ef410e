#include "client_stub/driver/calls/call/graphics_interop.hpp"

#include <cuda.h>

#include "client/trace.hpp"
#include "client_stub/driver/calls/call/entry.hpp"

// The functions that cudaGL.h, cudaEGL.h and cudaVDPAU.h declare, with the older and the per-thread names that NVIDIA's
// driver exports (protocol/cuda_abi/proc_address_rules.txt). The list is sorted.
// clang-format off
#define GPUWIRE_GRAPHICS_FUNCTIONS(each) \
  each(cuEGLStreamConsumerAcquireFrame) \
  each(cuEGLStreamConsumerConnect) \
  each(cuEGLStreamConsumerConnectWithFlags) \
  each(cuEGLStreamConsumerDisconnect) \
  each(cuEGLStreamConsumerReleaseFrame) \
  each(cuEGLStreamProducerConnect) \
  each(cuEGLStreamProducerDisconnect) \
  each(cuEGLStreamProducerPresentFrame) \
  each(cuEGLStreamProducerReturnFrame) \
  each(cuEventCreateFromEGLSync) \
  each(cuGLCtxCreate) \
  each(cuGLCtxCreate_v2) \
  each(cuGLGetDevices) \
  each(cuGLGetDevices_v2) \
  each(cuGLInit) \
  each(cuGLMapBufferObject) \
  each(cuGLMapBufferObjectAsync) \
  each(cuGLMapBufferObjectAsync_v2) \
  each(cuGLMapBufferObjectAsync_v2_ptsz) \
  each(cuGLMapBufferObject_v2) \
  each(cuGLMapBufferObject_v2_ptds) \
  each(cuGLRegisterBufferObject) \
  each(cuGLSetBufferObjectMapFlags) \
  each(cuGLUnmapBufferObject) \
  each(cuGLUnmapBufferObjectAsync) \
  each(cuGLUnregisterBufferObject) \
  each(cuGraphicsEGLRegisterImage) \
  each(cuGraphicsGLRegisterBuffer) \
  each(cuGraphicsGLRegisterImage) \
  each(cuGraphicsResourceGetMappedEglFrame) \
  each(cuGraphicsVDPAURegisterOutputSurface) \
  each(cuGraphicsVDPAURegisterVideoSurface) \
  each(cuVDPAUCtxCreate) \
  each(cuVDPAUCtxCreate_v2) \
  each(cuVDPAUGetDevice)
// clang-format on

namespace gpuwire::client {
namespace {

CUresult refused(const char* name) {
  // The trace prints no parameters, because their types are unknown here.
  static constexpr trace::Layout kNoParameters{nullptr, 0};
  const trace::Arguments<1> arguments{&kNoParameters, {0}};
  return run_entry(name, CallClass::local, trace::print, &arguments, [] { return CUDA_ERROR_NOT_SUPPORTED; });
}

}  // namespace
}  // namespace gpuwire::client

// The functions are defined without parameters, because the parameters' types belong to other libraries. On x86-64 the
// caller removes the arguments from the stack.
#define GPUWIRE_REFUSED(name) \
  extern "C" __attribute__((visibility("default"))) CUresult name() { return gpuwire::client::refused(#name); }
GPUWIRE_GRAPHICS_FUNCTIONS(GPUWIRE_REFUSED)

namespace gpuwire::client {

std::span<const ExportedSymbol> graphics_symbols() noexcept {
#define GPUWIRE_ROW(name) {#name, reinterpret_cast<void*>(&::name)},
  static const ExportedSymbol kSymbols[] = {GPUWIRE_GRAPHICS_FUNCTIONS(GPUWIRE_ROW)};
#undef GPUWIRE_ROW
  return kSymbols;
}

}  // namespace gpuwire::client
