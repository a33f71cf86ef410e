// A library of 1 GB: 200 fat binaries of 5 MB, each with machine code for a GPU that no server has and a kernel as PTX.
// The program loads all of them, like the runtime at its start, and uses 30. The machine code is untouched memory, so
// any read of it is detected.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../../../examples/check.hpp"

namespace {

constexpr int kImages = 200, kUsed = 30;
constexpr size_t kImageBytes = 5 << 20, kPtxBytes = 64 << 10, kPageBytes = 4096;
// The bound of the touched memory: the texts, and the headers before the code.
constexpr size_t kTouchedBytesMax = 20 << 20;

struct ContainerHeader {
  uint32_t magic = 0xBA55ED50;
  uint16_t version = 1, header_bytes = 16;
  uint64_t payload_bytes;
};
struct EntryHeader {
  uint16_t kind, version = 0x101;
  uint32_t header_bytes = 64;
  uint64_t padded_bytes;
  uint32_t stored_bytes = 0, options = 0, format = 0, sm, name = 0, name_bytes = 0;
  uint64_t flags = 0x11, unused = 0, decompressed_bytes = 0;
};
constexpr uint32_t kPtxFormat = 7u << 16;  // PTX ISA 7.0
static_assert(sizeof(ContainerHeader) == 16 && sizeof(EntryHeader) == 64);

// Stores 1000 + number. The comment gives it a realistic size, and makes each image different.
std::string kernel(int number) {
  std::string name = "kernel_" + std::to_string(number);
  std::string text =
      ".version 7.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry " +
      name +
      "(.param .u64 out) {\n"
      ".reg .u64 %a; .reg .u32 %v;\n"
      "ld.param.u64 %a, [out];\nmov.u32 %v, " +
      std::to_string(1000 + number) +
      ";\n"
      "st.global.u32 [%a], %v;\nret;\n}\n//";
  for (unsigned state = unsigned(number) * 2654435761u + 1; text.size() < kPtxBytes - 1;
       state = state * 1664525u + 1013904223u)
    text +=
        text.size() % 80 == 0 && text.size() < kPtxBytes - 4 ? "\n//" : std::string(1, char('a' + (state >> 24) % 26));
  text.resize(kPtxBytes - 2);
  text += '\n';
  text += '\0';
  return text;
}

void build(uint8_t* at, int number) {
  std::string ptx = kernel(number);
  ContainerHeader container;
  container.payload_bytes = kImageBytes - sizeof container;
  EntryHeader code{
      .kind = 2, .padded_bytes = kImageBytes - sizeof container - 2 * sizeof(EntryHeader) - ptx.size(), .sm = 50};
  EntryHeader text{.kind = 1, .padded_bytes = ptx.size(), .format = kPtxFormat, .sm = 75};
  std::memcpy(at, &container, sizeof container);
  std::memcpy(at + sizeof container, &code, sizeof code);
  uint8_t* behind = at + sizeof container + sizeof code + code.padded_bytes;
  std::memcpy(behind, &text, sizeof text);
  std::memcpy(behind + sizeof text, ptx.data(), ptx.size());
}

// Returns the bytes of the images' pages that were read or written: a read of untouched memory makes a page resident,
// too.
size_t touched_bytes(void* memory) {
  std::vector<unsigned char> pages(kImages * kImageBytes / kPageBytes);
  if (mincore(memory, kImages * kImageBytes, pages.data()) != 0) std::exit(EXIT_FAILURE);
  return size_t(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; })) * kPageBytes;
}

}  // namespace

int main() {
  auto* memory = static_cast<uint8_t*>(
      mmap(nullptr, kImages * kImageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) return EXIT_FAILURE;
  // Otherwise a touched page makes its neighbours resident. A system without large pages refuses this call.
  madvise(memory, kImages * kImageBytes, MADV_NOHUGEPAGE);
  for (int i = 0; i < kImages; ++i) build(memory + i * kImageBytes, i);

  CUdevice device;
  CUcontext context;
  CHECK_DRIVER(cuInit(0));
  CHECK_DRIVER(cuDeviceGet(&device, 0));
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  std::vector<CUlibrary> libraries(kImages);
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* yes = reinterpret_cast<void*>(uintptr_t{1});
  for (int i = 0; i < kImages; ++i) {
    CHECK_DRIVER(cuLibraryLoadData(&libraries[i], memory + i * kImageBytes, nullptr, nullptr, 0, &preserved, &yes, 1));
  }
  CUdeviceptr out;
  CHECK_DRIVER(cuMemAlloc(&out, sizeof(uint32_t)));
  for (int used = 0; used < kUsed; ++used) {
    int image = used * 37 % kImages;
    CUkernel kernel;
    CHECK_DRIVER(cuLibraryGetKernel(&kernel, libraries[image], ("kernel_" + std::to_string(image)).c_str()));
    void* parameters[] = {&out};
    CHECK_DRIVER(
        cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    uint32_t value = 0;
    CHECK_DRIVER(cuMemcpyDtoH(&value, out, sizeof value));
    if (value != 1000u + unsigned(image)) {
      std::printf("kernel %d gave %u\n", image, value);
      return EXIT_FAILURE;
    }
  }
  size_t touched = touched_bytes(memory);
  // NVIDIA's driver in this process may read all of it.
  if (std::getenv("GPUWIRE_SERVER") && touched > kTouchedBytesMax) {
    std::printf("%zu MiB of the images were read\n", touched >> 20);
    return EXIT_FAILURE;
  }
  std::printf("%d of %d images used\nPASSED\n", kUsed, kImages);
  return 0;
}
