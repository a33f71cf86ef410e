#include "arguments.hpp"

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "callbacks.hpp"
#include "structures.hpp"

namespace differential {
namespace {

constexpr size_t kOutputBytes = 256;  // more than any call writes to one output that is no structure

uint64_t read(const std::byte* at, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, at, std::min(bytes, sizeof value));
  return value;
}

}  // namespace

void Slots::put(const std::string& name, Slot slot) {
  slots_[name] = slot;
  order_.push_back(name);
}

std::string Slots::describe(uint64_t value) const {
  if (value == 0) return "0";
  // The newest first: an address that was freed may be given again.
  for (auto name = order_.rbegin(); name != order_.rend(); ++name) {
    const Slot& slot = slots_.at(*name);
    if (slot.value == value) return "$" + *name;
    if (slot.value < value && value - slot.value < slot.bytes)
      return "$" + *name + "+" + std::to_string(value - slot.value);
  }
  return "other";
}

Arguments::Arguments(Slots& slots, std::string_view text) : slots_(slots), text_(text) {
  for (skip_spaces(); at_ < text_.size(); skip_spaces()) all_.push_back(argument());
}

std::byte* Arguments::storage(size_t bytes) {
  storages_.push_back(std::make_unique<std::byte[]>(std::max<size_t>(bytes, 1)));
  return storages_.back().get();
}

void Arguments::skip_spaces() {
  while (at_ < text_.size() && text_[at_] == ' ') ++at_;
}

bool Arguments::take(char wanted) {
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

std::string Arguments::word() {
  size_t begin = at_;
  while (at_ < text_.size() && !std::strchr(" =>@|()[]{}:\"", text_[at_])) ++at_;
  // A field's name may have an index in it: addressMode[0].
  if (at_ > begin && at_ + 2 < text_.size() && text_[at_] == '[' && text_[at_ + 2] == ']') at_ += 3;
  return std::string(text_.substr(begin, at_ - begin));
}

// Parses a number, a slot with or without an offset, or a function of the interpreter.
uint64_t Arguments::number(const std::string& text) const {
  if (text.empty()) throw std::runtime_error("a value is missing");
  if (text[0] == '%') return callback_address(std::string_view(text).substr(1));
  if (text[0] != '$') return text[0] == '-' ? uint64_t(std::stoll(text, nullptr, 0)) : std::stoull(text, nullptr, 0);
  size_t plus = text.find('+');
  uint64_t base = slots_[text.substr(1, plus == std::string::npos ? plus : plus - 1)].value;
  return plus == std::string::npos ? base : base + std::stoull(text.substr(plus + 1), nullptr, 0);
}

Argument Arguments::argument() {
  skip_spaces();
  if (take('[')) return list();
  if (take('(')) return parameters();
  if (take('{')) return structure();
  if (take('>') || take('?')) {
    --at_;
    return output();
  }
  if (take('"')) {
    size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) throw std::runtime_error("a text without an end");
    std::byte* text = storage(end - at_ + 1);
    std::memcpy(text, text_.data() + at_, end - at_);
    at_ = end + 1;
    return {.word = reinterpret_cast<uint64_t>(text)};
  }
  return {.word = number(word())};
}

// [a b c]: words; [u32 a b]: numbers of 32 bits.
Argument Arguments::list() {
  std::vector<uint64_t> items;
  size_t item_bytes = 8;
  if (text_.substr(at_, 4) == "u32 ") {
    at_ += 4;
    item_bytes = 4;
  }
  for (skip_spaces(); !take(']'); skip_spaces()) items.push_back(argument().word);
  std::byte* at = storage(items.size() * item_bytes);
  for (size_t i = 0; i < items.size(); ++i) std::memcpy(at + i * item_bytes, &items[i], item_bytes);
  return {.word = reinterpret_cast<uint64_t>(at)};
}

// (8:a 4:b): addresses of values with so many bytes, as a launch has them.
Argument Arguments::parameters() {
  std::vector<uint64_t> places;
  for (skip_spaces(); !take(')'); skip_spaces()) {
    size_t bytes = std::stoul(word());
    if (!take(':')) throw std::runtime_error("a parameter without its size");
    uint64_t value = number(word());
    would_fault_ = would_fault_ || (bytes == 8 && value == 0);
    std::byte* at = storage(8);
    std::memcpy(at, &value, std::min<size_t>(bytes, 8));
    places.push_back(reinterpret_cast<uint64_t>(at));
  }
  std::byte* at = storage(places.size() * sizeof(uint64_t));
  if (!places.empty()) std::memcpy(at, places.data(), places.size() * sizeof(uint64_t));
  return {.word = reinterpret_cast<uint64_t>(at)};
}

// {Type field=value ... | field field>slot}: those behind the bar are shown after the call.
Argument Arguments::structure() {
  const Structure* type = find_structure(word());
  if (!type) throw std::runtime_error("an unknown structure");
  std::byte* at = storage(type->bytes);
  bool after = false;
  for (skip_spaces(); !take('}'); skip_spaces()) {
    if (take('|')) {
      after = true;
      continue;
    }
    const Field* field = type->find(word());
    if (!field) throw std::runtime_error("an unknown field");
    if (after) {
      // A number stays a number even if some handle has the same value.
      Output output{field->bytes == 4 ? "i32" : field->is_size ? "u64" : "word", at + field->offset, {}, 0};
      if (take('>')) output.slot = word();
      if (take('@')) output.slot_bytes = number(word());
      outputs_.push_back(output);
    } else if (take('=')) {
      uint64_t value = argument().word;
      std::memcpy(at + field->offset, &value, field->bytes);
    }
  }
  return {.word = reinterpret_cast<uint64_t>(at), .bytes = at};
}

// >slot or >slot@bytes: a handle or an address that later lines use; ?format: a value that the log shows.
Argument Arguments::output() {
  bool named = text_[at_++] == '>';
  Output output{"word", storage(kOutputBytes), {}, 0};
  if (named) {
    output.slot = word();
    if (take('@')) output.slot_bytes = number(word());
  } else {
    output.format = word();
  }
  outputs_.push_back(output);
  return {.word = reinterpret_cast<uint64_t>(output.at)};
}

std::string Arguments::finish(bool success) {
  std::string shown;
  for (const Output& output : outputs_) {
    uint64_t value = read(output.at, 8);
    if (success && !output.slot.empty()) slots_.put(output.slot, {value, output.slot_bytes});
    if (!success || output.format == "hide") continue;
    shown += ' ';
    if (output.format == "word") {
      shown += slots_.describe(value);
    } else if (output.format == "i32") {
      shown += std::to_string(int32_t(value));
    } else if (output.format == "u32") {
      shown += std::to_string(uint32_t(value));
    } else if (output.format == "u64") {
      shown += std::to_string(value);
    } else if (output.format == "chars") {
      shown += reinterpret_cast<const char*>(output.at);
    } else if (output.format == "text") {
      shown += value ? reinterpret_cast<const char*>(value) : "(null)";
    } else {
      throw std::runtime_error("an unknown format");
    }
  }
  return shown;
}

}  // namespace differential
