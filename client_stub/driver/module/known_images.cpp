#include "client_stub/driver/module/known_images.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace gpuwire::client {
namespace {

constexpr size_t kHexDigits = 2 * sizeof(ProgramImage::Digest);
constexpr std::pair<wire::HandleKind, std::string_view> kKinds[] = {{wire::HandleKind::library, "library "},
                                                                    {wire::HandleKind::module, "module "}};

std::optional<unsigned> value_of(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return unsigned(digit - '0');
  if (digit >= 'a' && digit <= 'f') return unsigned(digit - 'a') + 10;
  return std::nullopt;
}

// "library DIGEST KERNEL", or "module" in its place.
std::string line_of(const KnownImage& image) {
  std::string out;
  for (const auto& [kind, word] : kKinds) {
    if (kind == image.kind) out = word;
  }
  return out + hex_digits(image.digest) + ' ' + image.kernel + '\n';
}

std::optional<KnownImage> parse(std::string_view line) {
  KnownImage out{};
  for (const auto& [kind, word] : kKinds) {
    if (!line.starts_with(word)) continue;
    out.kind = kind;
    line.remove_prefix(word.size());
    break;
  }
  if (out.kind == wire::HandleKind::none || line.size() <= kHexDigits || line[kHexDigits] != ' ') return std::nullopt;
  for (size_t i = 0; i < out.digest.size(); ++i) {
    const auto high = value_of(line[2 * i]), low = value_of(line[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    out.digest[i] = uint8_t(*high << 4 | *low);
  }
  line.remove_prefix(kHexDigits + 1);
  if (!ImageLines::holds(line)) return std::nullopt;
  out.kernel = line;
  return out;
}

}  // namespace

KnownImages::KnownImages(std::string folder, const ProgramImage::Digest& program) : lines_(std::move(folder), program) {
  if (!lines_.kept()) return;
  for (const std::string& line : lines_.read()) {
    if (images_.size() == kKnownImagesMax) break;
    auto image = parse(line);
    if (image && !holds(image->digest)) images_.push_back(std::move(*image));
  }
  earlier_ = images_.size();
  unwritten_ = earlier_ == 0;
}

bool KnownImages::holds(const ProgramImage::Digest& image) const noexcept {
  return std::any_of(images_.begin(), images_.end(), [&](const KnownImage& one) { return one.digest == image; });
}

void KnownImages::used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel) {
  if (!lines_.kept() || !ImageLines::holds(kernel) || !used_.insert(image).second) return;
  if (holds(image) || images_.size() == kKnownImagesMax) return;
  images_.push_back({kind, image, std::string(kernel)});
  if (images_.size() == 1) return;
  std::string lines;
  if (std::exchange(unwritten_, false)) lines = line_of(images_.front());
  lines_.append(lines + line_of(images_.back()));
}

void KnownImages::forget_unused() {
  std::string lines;
  for (const KnownImage& image : images_) {
    if (is_used(image.digest)) lines += line_of(image);
  }
  lines_.replace(lines);
}

}  // namespace gpuwire::client
