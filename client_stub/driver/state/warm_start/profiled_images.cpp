#include "client_stub/driver/state/warm_start/profiled_images.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace gpuwire::client {
namespace {

constexpr size_t kHexDigits = 2 * sizeof(SubjectDigest);
constexpr std::pair<wire::HandleKind, std::string_view> kKinds[] = {{wire::HandleKind::library, "library "},
                                                                    {wire::HandleKind::module, "module "}};

std::optional<unsigned> value_of(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return unsigned(digit - '0');
  if (digit >= 'a' && digit <= 'f') return unsigned(digit - 'a') + 10;
  return std::nullopt;
}

// "library DIGEST KERNEL", or "module" in its place.
std::string line_of(const ProfiledImage& image) {
  std::string out;
  for (const auto& [kind, word] : kKinds) {
    if (kind == image.kind) out = word;
  }
  return out + hex_digits(image.digest) + ' ' + image.kernel;
}

std::optional<ProfiledImage> image_of(std::string_view line) {
  ProfiledImage out{};
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
  if (!WarmStart::holds(line)) return std::nullopt;
  out.kernel = line;
  return out;
}

}  // namespace

ProfiledImages::ProfiledImages(std::shared_ptr<WarmStart> program) : program_(std::move(program)) {
  for (const std::string& line : program_->lines(WarmStartSection::images)) {
    if (images_.size() == kProfiledImagesMax) break;
    auto image = image_of(line);
    if (image && !holds(image->digest)) images_.push_back(std::move(*image));
  }
  earlier_ = images_.size();
}

bool ProfiledImages::holds(const SubjectDigest& image) const noexcept {
  return std::any_of(images_.begin(), images_.end(), [&](const ProfiledImage& one) { return one.digest == image; });
}

void ProfiledImages::used(wire::HandleKind kind, const SubjectDigest& image, std::string_view kernel) {
  if (!program_->kept() || !WarmStart::holds(kernel) || !used_.insert(image).second) return;
  if (holds(image) || images_.size() == kProfiledImagesMax) return;
  images_.push_back({kind, image, std::string(kernel)});
  program_->add(WarmStartSection::images, line_of(images_.back()), false);
}

void ProfiledImages::forget_unused() {
  std::vector<std::string> lines;
  for (const ProfiledImage& image : images_) {
    if (is_used(image.digest)) lines.push_back(line_of(image));
  }
  program_->replace(WarmStartSection::images, lines);
}

}  // namespace gpuwire::client
