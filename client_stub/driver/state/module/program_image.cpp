#include "client_stub/driver/state/module/program_image.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/fatbin/linked_image.hpp"

namespace gpuwire::client {
namespace {

tl::unexpected<ImageError> fail(CUresult result, std::string message) {
  return tl::unexpected(ImageError{result, std::move(message)});
}

// The header of a container that holds `entry_bytes` bytes of entries (protocol/fatbin reads the same layout).
std::vector<uint8_t> container_header(uint64_t entry_bytes) {
  struct {
    uint32_t magic = fatbin::kContainerMagic;
    uint16_t version = 1;
    uint16_t header_bytes = fatbin::kContainerHeaderBytes;
    uint64_t payload_bytes;
  } header;
  header.payload_bytes = entry_bytes;
  static_assert(sizeof header == fatbin::kContainerHeaderBytes);
  std::vector<uint8_t> out(sizeof header);
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

ProgramImage::Digest sha256(std::span<const uint8_t> head, std::span<const uint8_t> body) {
  ProgramImage::Digest digest{};
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
  EVP_DigestUpdate(context, head.data(), head.size());
  EVP_DigestUpdate(context, body.data(), body.size());
  EVP_DigestFinal_ex(context, digest.data(), nullptr);
  EVP_MD_CTX_free(context);
  return digest;
}

// "sm_90a", "PTX for sm_80".
std::string name_of(const fatbin::Entry& entry) {
  return (entry.kind == fatbin::Kind::ptx ? "PTX for sm_" : "sm_") + std::to_string(entry.sm) +
         (entry.architecture_specific ? "a"
          : entry.family_specific     ? "f"
                                      : "");
}

// The line for the user names the architectures in the program, and the server's.
std::string nothing_to_run(const std::vector<fatbin::Entry>& entries, const ImageTarget& target) {
  constexpr size_t kNamesMax = 12;  // a library is built for some ten architectures
  std::vector<std::string> names;
  for (const fatbin::Entry& entry : entries) {
    std::string name = name_of(entry);
    if (entry.kind != fatbin::Kind::other && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(std::move(name));
  }
  std::string text = "the fat binary holds nothing that the server's device can run: it has ";
  if (names.empty()) text += "no code";
  for (size_t i = 0; i < std::min(names.size(), kNamesMax); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kNamesMax) text += " and others";
  const fatbin::ComputeCapability device = target.devices.front();
  text += ", and the device is sm_" + std::to_string(device.major) + std::to_string(device.minor);
  if (target.ptx_only) text += ", a software device, which runs PTX alone";
  return text;
}

}  // namespace

void ProgramImage::read(uint64_t offset, std::span<std::byte> out) const noexcept {
  size_t done = 0;
  if (offset < head_.size()) {
    done = std::min<size_t>(out.size(), head_.size() - offset);
    std::memcpy(out.data(), head_.data() + offset, done);
    offset += done;
  }
  if (done < out.size()) std::memcpy(out.data() + done, body_.data() + (offset - head_.size()), out.size() - done);
}

fatbin::KernelParameterTable ProgramImage::kernel_parameters() const {
  fatbin::KernelParameterTable table;
  auto add = [&](const tl::expected<std::vector<fatbin::Entry>, fatbin::Error>& entries) {
    if (entries) fatbin::read_entries_parameters(*entries, table);
  };
  if (!head_.empty()) {
    add(fatbin::read_entries(body_));
  } else if (fatbin::is_linked_image(body_)) {
    if (auto containers = fatbin::read_linked_image(body_))
      for (const auto& container : *containers) add(fatbin::read_container(container));
  } else if (const auto kind = fatbin::image_kind(body_); kind == fatbin::ImageKind::container) {
    add(fatbin::read_container(body_));
  } else if (kind == fatbin::ImageKind::elf) {
    fatbin::read_cubin_parameters(body_, table);
  } else {
    fatbin::read_ptx_parameters({reinterpret_cast<const char*>(body_.data()), body_.size()}, table);
  }
  return table;
}

void ProgramImage::finish(std::span<const uint8_t> body, bool keep) {
  if (keep) {
    owned_.assign(body.begin(), body.end());
    body = owned_;
  }
  body_ = body;
  digest_ = sha256(head_, body_);
}

// Chooses one entry if it fits all devices; otherwise the whole container, from which the server's driver chooses for
// each device.
tl::expected<void, ImageError> ProgramImage::choose(std::span<const uint8_t> container, const ImageTarget& target,
                                                    bool keep) {
  auto entries = fatbin::read_container(container);
  if (!entries) return fail(CUDA_ERROR_INVALID_IMAGE, entries.error().message);
  const fatbin::Entry* chosen = nullptr;
  bool differ = false, any = false;
  for (const auto& device : target.devices) {
    const fatbin::Entry* entry = fatbin::select_entry(*entries, device, target.ptx_only);
    differ = differ || (any && entry != chosen);
    any = true;
    if (entry) chosen = entry;
  }
  if (!chosen) return fail(CUDA_ERROR_NO_BINARY_FOR_GPU, nothing_to_run(*entries, target));
  if (differ) {
    finish(container, keep);
    return {};
  }
  head_ = container_header(chosen->whole.size());
  finish(chosen->whole, keep);
  return {};
}

tl::expected<std::shared_ptr<const ProgramImage>, ImageError> ProgramImage::select(const void* image,
                                                                                   const ImageTarget& target,
                                                                                   bool keep) {
  if (!looks_like_image(image)) return fail(CUDA_ERROR_INVALID_IMAGE, "not a program image");
  const auto* bytes = static_cast<const uint8_t*>(image);
  auto kind = fatbin::image_kind({bytes, strnlen(static_cast<const char*>(image), 8)});
  fatbin::WrappedContainers wrapped;
  if (kind == fatbin::ImageKind::wrapper) {
    auto found = fatbin::wrapped_containers(image);
    if (!found) return fail(CUDA_ERROR_INVALID_IMAGE, found.error().message);
    wrapped = *std::move(found);
    image = wrapped.container;
    kind = fatbin::ImageKind::container;
  }
  auto span = fatbin::span_of_trusted_image(image);
  if (!span) return fail(CUDA_ERROR_INVALID_IMAGE, span.error().message);
  auto out = std::make_shared<ProgramImage>();
  if (kind != fatbin::ImageKind::container) {
    bool text = kind == fatbin::ImageKind::text;
    out->finish({span->data(), span->size() + (text ? 1 : 0)}, keep);
    return out;
  }
  auto chosen = out->choose(*span, target, keep);
  if (chosen) return out;
  if (wrapped.linked_from.empty()) return tl::unexpected(chosen.error());
  return linked(wrapped, chosen.error());
}

// The program was linked for another device than the server's, so the server's driver links the same containers again
// and decides whether they have code for the device. `without` is the error if the containers cannot be sent.
tl::expected<std::shared_ptr<const ProgramImage>, ImageError> ProgramImage::linked(
    const fatbin::WrappedContainers& wrapped, ImageError without) {
  std::vector<std::span<const uint8_t>> containers;
  auto add = [&](const void* container) {
    auto span = fatbin::span_of_trusted_image(container);
    if (span) containers.push_back(*span);
    return span.has_value();
  };
  if (!add(wrapped.container)) return tl::unexpected(without);
  for (const void* container : wrapped.linked_from) {
    if (!add(container)) return tl::unexpected(without);
  }
  auto bytes = fatbin::write_linked_image(containers);
  if (!bytes) return tl::unexpected(without);
  auto out = std::make_shared<ProgramImage>();
  out->owned_ = *std::move(bytes);
  out->finish(out->owned_, false);
  return out;
}

tl::expected<std::shared_ptr<const ProgramImage>, ImageError> ProgramImage::select_from_file(
    std::vector<uint8_t> contents, const ImageTarget& target) {
  if (contents.empty()) return fail(CUDA_ERROR_INVALID_IMAGE, "the file is empty");
  auto out = std::make_shared<ProgramImage>();
  std::span<const uint8_t> bytes = contents;
  switch (fatbin::image_kind(bytes.first(std::min<size_t>(bytes.size(), 8)))) {
    case fatbin::ImageKind::wrapper:
      return fail(CUDA_ERROR_INVALID_IMAGE,
                  "the file holds a fat binary's wrapper, which is meaningful in memory only");
    case fatbin::ImageKind::container: {
      auto chosen = out->choose(bytes, target, true);
      if (!chosen) return tl::unexpected(chosen.error());
      return out;
    }
    case fatbin::ImageKind::elf: {
      auto whole = fatbin::elf_bytes(bytes);
      if (!whole || *whole > bytes.size())
        return fail(CUDA_ERROR_INVALID_IMAGE, "the ELF file is cut short or damaged");
      break;
    }
    case fatbin::ImageKind::text: contents.push_back(0); break;
  }
  out->owned_ = std::move(contents);
  out->finish(out->owned_, false);
  return out;
}

std::shared_ptr<const ProgramImage> ProgramImage::whole(std::span<const uint8_t> bytes) {
  auto out = std::make_shared<ProgramImage>();
  out->finish(bytes, false);
  return out;
}

bool looks_like_image(const void* image) noexcept {
  return image != nullptr && *static_cast<const uint8_t*>(image) != 0;
}

}  // namespace gpuwire::client
