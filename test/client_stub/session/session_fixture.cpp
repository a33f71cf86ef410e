#include "test/client_stub/session/session_fixture.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "protocol/wire/message_reader.hpp"

namespace gpuwire::test {

namespace {
constexpr uint32_t kOrdinal = uint32_t(wire::SessionOrdinal::source);
}

void RecordingHandler::notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) {
  if (on_notice) on_notice(ordinal, message);
  ++notices;
}

client::BulkSink RecordingHandler::bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader&, size_t bulk_bytes) {
  if (ordinal == wire::NoticeOrdinal::copy_data) return sink;
  text.resize(bulk_bytes);
  return {text.data(), text.size()};
}

void RecordingHandler::bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                                   std::span<const std::byte> bytes) {
  if (ordinal == wire::NoticeOrdinal::output) CHECK(bytes.size() == text.size());
  if (on_notice) on_notice(ordinal, message);
  ++stored;
}

void RecordingHandler::ended(CUresult result, std::string_view reason) {
  end_reason = reason;
  end_result = result;
  ++ends;
  ends.notify_all();
}

Fixture::Fixture(Ends ends, FakeServer::Serve serve)
    : server(std::make_unique<FakeServer>(std::move(ends.second), std::move(serve))) {
  started = client::ConnectedSession::start(std::move(ends.first), "test:1", handler, session, error);
  INFO(error);
  REQUIRE(started == CUDA_SUCCESS);
}

Fixture::~Fixture() {
  session.reset();
  server->join();
  CHECK(server->sequences_ok());
}

CUresult Fixture::post(uint64_t number, const client::Bulk& bulk, uint64_t* sequence) {
  return client::post<schema::Source>(
      *session, kOrdinal, 0, client::message_words<schema::Source>(), [&](auto params) { params.setBytes(number); },
      bulk, sequence);
}

CUresult Fixture::call(uint64_t number, const client::Bulk& bulk, const client::BulkSink& sink) {
  return client::call<schema::Source, schema::Result>(
      *session, kOrdinal, 0, client::message_words<schema::Source>(), [&](auto params) { params.setBytes(number); },
      [](auto) {}, bulk, sink);
}

uint64_t number_in(FakeServer& server) {
  wire::SegmentReader message(server.message());
  return message.getRoot<schema::Source>().getBytes();
}

std::string stderr_of(const std::function<void()>& body) {
  int file = memfd_create("stderr", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
  dup2(file, STDERR_FILENO);
  body();
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text(size_t(lseek(file, 0, SEEK_END)), '\0');
  [[maybe_unused]] ssize_t got = pread(file, text.data(), text.size(), 0);
  close(file);
  return text;
}

void answer_all(FakeServer& server) {
  while (server.next()) {
    server.skip_bulk();
    if (wire::FrameKind(server.header().kind) == wire::FrameKind::called) server.reply(server.header().sequence);
  }
}

}  // namespace gpuwire::test
