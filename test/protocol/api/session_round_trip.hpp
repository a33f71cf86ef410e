// What the generated round trips of the session's own calls and notices (protocol/codegen/emit_session_tests.py) are
// made of: random contents, a session and an outbox that keep what is sent, and a list of the fields that came out
// differently.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <capnp/message.h>

#include "client_stub/session/session.hpp"
#include "protocol/wire/fields.hpp"
#include "protocol/wire/message_reader.hpp"
#include "server/replay/replay.hpp"
#include "test/protocol/api/round_trip.hpp"

namespace gpuwire::test {

// Random values for the fields of a message, some of them empty. What they borrow lives as long as this.
class Contents : public Source {
 public:
  using Source::Source;

  template <class T>
  requires std::is_arithmetic_v<T>
  void fill(T& number) {
    if constexpr (std::is_same_v<T, bool>) {
      number = coin();
    } else if constexpr (std::is_floating_point_v<T>) {
      number = T(int32_t(bits())) / T(1024);
    } else {
      number = T(bits());
    }
  }
  void fill(std::string_view& text) { text = some_text(); }
  void fill(wire::Bytes& bytes) { bytes = some_bytes(); }
  void fill(wire::Words& words) { words = some_items<uint64_t>(); }
  void fill(wire::Filled& filled) {
    auto& bytes = some_bytes();
    fills_.push_back([&bytes](std::span<std::byte> out) { std::memcpy(out.data(), bytes.data(), out.size()); });
    filled = wire::Filled(bytes.size(), fills_.back());
  }
  template <class T>
  void fill(std::span<const T>& items) {
    items = some_items<T>();
  }
  void fill(std::span<const std::string_view>& texts) {
    auto& all = texts_.emplace_back(count());
    for (auto& text : all) text = some_text();
    texts = all;
  }

 private:
  size_t count() { return bits() % 4 == 0 ? 0 : 1 + bits() % 20; }
  std::string_view some_text() {
    std::string& text = text_.emplace_back();
    for (size_t i = count(); i > 0; --i) text.push_back(char('a' + bits() % 26));
    return text;
  }
  std::vector<std::byte>& some_bytes() {
    auto& bytes = bytes_.emplace_back(count());
    Source::fill(bytes.data(), bytes.size());
    return bytes;
  }
  template <class T>
  std::span<const T> some_items() {
    size_t items = count();
    auto& words = words_.emplace_back((items * sizeof(T) + 7) / 8);
    Source::fill(words.data(), words.size() * 8);
    return {reinterpret_cast<const T*>(words.data()), items};
  }

  std::deque<std::string> text_;
  std::deque<std::vector<std::byte>> bytes_;
  std::deque<std::vector<uint64_t>> words_;
  std::deque<std::vector<std::string_view>> texts_;
  std::deque<std::function<void(std::span<std::byte>)>> fills_;
};

// Names of fields that were not read as they were written.
class Differences {
 public:
  const std::string& names() const { return names_; }

  template <class T>
  requires std::is_arithmetic_v<T>
  void same(const char* name, T sent, T got) { note(name, std::memcmp(&sent, &got, sizeof sent) == 0); }
  void same(const char* name, std::string_view sent, capnp::Text::Reader got) {
    note(name, sent == std::string_view(got.begin(), got.size()));
  }
  void same(const char* name, const wire::Bytes& sent, capnp::Data::Reader got) {
    note(name, equal(sent.data, sent.size, got));
  }
  void same(const char* name, const wire::Filled& sent, capnp::Data::Reader got) {
    std::vector<std::byte> bytes(sent.size);
    if (sent.size) sent.write(sent.user, bytes);
    note(name, equal(bytes.data(), bytes.size(), got));
  }
  void same(const char* name, const wire::Words& sent, capnp::List<uint64_t>::Reader got) {
    bool equal = sent.count == got.size();
    for (unsigned i = 0; equal && i < got.size(); ++i) {
      uint64_t word = got[i];
      equal = std::memcmp(static_cast<const std::byte*>(sent.data) + i * sizeof word, &word, sizeof word) == 0;
    }
    note(name, equal);
  }
  template <class T>
  void same(const char* name, std::span<const T> sent, typename capnp::List<T>::Reader got) {
    bool equal = sent.size() == got.size();
    for (unsigned i = 0; equal && i < got.size(); ++i) equal = sent[i] == got[i];
    note(name, equal);
  }
  void same(const char* name, std::span<const std::string_view> sent, capnp::List<capnp::Text>::Reader got) {
    bool equal = sent.size() == got.size();
    for (unsigned i = 0; equal && i < got.size(); ++i)
      equal = sent[i] == std::string_view(got[i].begin(), got[i].size());
    note(name, equal);
  }
  void note(const char* name, bool equal) {
    if (!equal) names_ += std::string(names_.empty() ? "" : ", ") + name;
  }

 private:
  static bool equal(const void* data, size_t size, capnp::Data::Reader got) {
    return size == got.size() && (size == 0 || std::memcmp(data, got.begin(), size) == 0);
  }
  std::string names_;
};

// Throws kj::Exception on words that are no such message.
template <class Schema, class Read>
void read_words(const Words& words, Read&& read) {
  wire::SegmentReader message(kj::arrayPtr(reinterpret_cast<const capnp::word*>(words.data()), words.size()));
  read(message.getRoot<Schema>());
}

// Keeps the one frame that is sent, and answers it with `reply`.
class KeepingSession final : public client::Session {
 public:
  const client::ServerFacts& facts() const noexcept override { return facts_; }
  client::SessionStats& stats() noexcept override { return stats_; }
  CUresult state() const noexcept override { return CUDA_SUCCESS; }
  CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const client::Bulk& bulk,
                 Slot& slot) noexcept override;
  void commit(Slot& slot, size_t words_used) noexcept override;
  void abandon(Slot&) noexcept override { ++abandoned; }
  CUresult wait(uint64_t sequence, ReplyReader read, void* user, const client::BulkSink& sink) noexcept override;
  void expect_reply(Slot&, const client::BulkSink& sink) noexcept override { expected_bytes = sink.bytes; }
  void flush() noexcept override {}
  void finish_sending() noexcept override {}
  uint64_t last_sequence() const noexcept override { return sequence; }
  void close() noexcept override {}
  void after_fork_in_child() noexcept override {}

  wire::FrameHeader header;
  Words words, reply;
  size_t words_max = 0;
  uint64_t sequence = 0;
  unsigned frames = 0, abandoned = 0;
  size_t expected_bytes = 0, awaited_bytes = 0;

 private:
  client::ServerFacts facts_;
  client::SessionStats stats_;
};

class KeepingOutbox final : public server::Outbox {
 public:
  void reply(uint64_t, capnp::MessageBuilder&, std::span<const std::byte>) override {}
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk) override;

  wire::NoticeOrdinal ordinal{};
  Words words;
  size_t segments = 0, bulk_bytes = 0;
  unsigned notices = 0;
};

// One call or notice, sent in one way.
class SessionRound {
 public:
  explicit SessionRound(uint64_t seed)
      : contents(seed), context(uint32_t(contents.bits())), bulk_(1 + contents.bits() % 100) {}

  client::Bulk bulk() { return {.data = bulk_.data(), .bytes = bulk_.size()}; }
  client::BulkSink sink() { return {.data = bulk_.data(), .bytes = bulk_.size()}; }
  std::span<const std::byte> notice_bulk() { return bulk_; }
  void leaves();  // the sequence is known, and the frame has not left
  void begun(CUresult result);

  template <class Schema, class Message>
  void answer_with(const Message& message) {
    session.reply = written<Schema>(message);
  }
  // The checks; what is wrong is told in `found`.
  template <class Schema, class Message>
  void posted(uint32_t ordinal, const Message& message, CUresult result) {
    found.note("posted: result", result == CUDA_SUCCESS);
    found.note("posted: leaving", left_ == 1);
    sent<Schema>(wire::FrameKind::posted, ordinal, message);
  }
  template <class Schema, class Message>
  void called(uint32_t ordinal, const Message& message, CUresult result, int32_t told, unsigned replies) {
    called_with(result, told, replies);
    sent<Schema>(wire::FrameKind::called, ordinal, message);
  }
  template <class Schema, class Message>
  void noticed(wire::NoticeOrdinal ordinal, const Message& message, bool with_bulk) {
    found.note("notice", outbox.notices == 1 && outbox.ordinal == ordinal && outbox.segments == 1);
    found.note("notice: words", outbox.words.size() == words_of(message));
    found.note("notice: bulk", outbox.bulk_bytes == (with_bulk ? bulk_.size() : 0));
    compare_with<Schema>(message, outbox.words);
  }

  Contents contents;
  Differences found;
  KeepingSession session;
  KeepingOutbox outbox;
  uint32_t context = 0;
  uint64_t sequence = 0;
  unsigned replies_read = 0;

 private:
  template <class Schema, class Message>
  static Words written(const Message& message) {
    Words words(words_of(message));
    capnp::FlatMessageBuilder builder(kj::arrayPtr(reinterpret_cast<capnp::word*>(words.data()), words.size()));
    write(message, builder.template initRoot<Schema>());
    return words;
  }
  template <class Schema, class Message>
  void sent(wire::FrameKind kind, uint32_t ordinal, const Message& message) {
    sent_frame(kind, ordinal);
    compare_with<Schema>(message, session.words);
  }
  void sent_frame(wire::FrameKind kind, uint32_t ordinal);
  void called_with(CUresult result, int32_t told, unsigned replies);
  // Generated: reads the words and compares field by field.
  template <class Schema, class Message>
  void compare_with(const Message& message, const Words& words);

  std::vector<std::byte> bulk_;
  unsigned left_ = 0;
};

struct SentWay {
  const char* name;
  uint32_t ordinal;
  void (*run)(SessionRound& round);
};

// Generated: every call in every way it can be sent, and every notice.
std::vector<SentWay> sent_ways();

}  // namespace gpuwire::test
