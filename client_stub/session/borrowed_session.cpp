#include "client_stub/session/borrowed_session.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "client_stub/session/ask.hpp"
#include "client_stub/session/road.hpp"
#include "client_stub/session/session_table.hpp"
#include "client_stub/session/several_servers.hpp"
#include "protocol/wire/message_reader.hpp"

namespace gpuwire::client {

namespace {

using GetExportTable = CUresult (*)(const void** table, const CUuuid* id);

// Returns null and the reason on failure. The library stays loaded, because sessions are its objects.
const SessionTable* find_table(std::string& error) {
  const std::string library = session_library();
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* reason = ::dlerror();
    error = reason ? reason : library;
    return nullptr;
  }
  auto get = reinterpret_cast<GetExportTable>(::dlsym(handle, "cuGetExportTable"));
  const void* found = nullptr;
  if (!get || get(&found, &kSessionTableId) != CUDA_SUCCESS || !found) {
    error = library + " is not gpuwire's";
    return nullptr;
  }
  auto* table = static_cast<const SessionTable*>(found);
  if (table->bytes == sizeof(SessionTable) && std::strcmp(table->release, GPUWIRE_VERSION) == 0) return table;
  error = library + " is of another release than " GPUWIRE_VERSION;
  return nullptr;
}

// The library's session, called so that no exception of a reply's reader passes through the library: the exception
// belongs to this side's C++ library.
class BorrowedSession final : public Session, public Road {
 public:
  explicit BorrowedSession(std::unique_ptr<Session> session) : session_(std::move(session)) {}

  const ServerFacts& facts() const noexcept override { return session_->facts(); }
  SessionStats& stats() noexcept override { return session_->stats(); }
  const char* road_name() const override {
    Road* road = road_of(*session_);
    return road ? road->road_name() : "";
  }
  Lanes lanes() const noexcept override {
    Road* road = road_of(*session_);
    return road ? road->lanes() : Lanes{};
  }
  bool give_descriptor(uint64_t, int) noexcept override { return false; }
  CUresult state() const noexcept override {
    return faulty_.load(std::memory_order_relaxed) ? CUDA_ERROR_DEVICE_UNAVAILABLE : session_->state();
  }
  CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
                 Slot& slot) noexcept override {
    return faulty_.load(std::memory_order_relaxed) ? CUDA_ERROR_DEVICE_UNAVAILABLE
                                                   : session_->begin(kind, ordinal, context, words_max, bulk, slot);
  }
  void commit(Slot& slot, size_t words_used) noexcept override { session_->commit(slot, words_used); }
  void abandon(Slot& slot) noexcept override { session_->abandon(slot); }
  CUresult wait(uint64_t sequence, ReplyReader read, void* user, const BulkSink& sink) noexcept override {
    struct Guarded {
      ReplyReader read;
      void* user;
      bool failed = false;
    } guarded{read, user};
    CUresult waited = session_->wait(
        sequence,
        [](void* context, capnp::MessageReader& reply) {
          auto& own = *static_cast<Guarded*>(context);
          CUresult result = CUDA_ERROR_UNKNOWN;
          own.failed = wire::read_guarded([&] { result = own.read(own.user, reply); }).has_value();
          return result;
        },
        &guarded, sink);
    if (!guarded.failed) return waited;
    // A session ends on invalid bytes; this flag has the same effect here.
    faulty_.store(true, std::memory_order_relaxed);
    session_->close();
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  void expect_reply(Slot& slot, const BulkSink& sink) noexcept override { session_->expect_reply(slot, sink); }
  void flush() noexcept override { session_->flush(); }
  void finish_sending() noexcept override { session_->finish_sending(); }
  uint64_t last_sequence() const noexcept override { return session_->last_sequence(); }
  void close() noexcept override { session_->close(); }
  void after_fork_in_child() noexcept override { session_->after_fork_in_child(); }

 private:
  std::unique_ptr<Session> session_;
  std::atomic<bool> faulty_{false};  // publishes nothing else
};

}  // namespace

CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error) {
  const SessionTable* table = find_table(error);
  return table ? table->ask(server, query, answer, error) : CUDA_ERROR_SYSTEM_NOT_READY;
}

std::vector<ServerOffer> survey_servers(const std::vector<std::string>& servers) {
  std::string error;
  std::vector<ServerOffer> offers(servers.size());
  if (const SessionTable* table = find_table(error)) {
    table->survey(servers, offers);
  } else {
    for (ServerOffer& offer : offers) offer = {.start = ServerOffer::Start::no, .why = error};
  }
  return offers;
}

CUresult Session::connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                          std::string& error, SessionKind kind) {
  const SessionTable* table = find_table(error);
  if (!table) return CUDA_ERROR_SYSTEM_NOT_READY;
  std::unique_ptr<Session> theirs;
  CUresult result = table->connect(server, notices, theirs, error, kind);
  if (result == CUDA_SUCCESS) session = std::make_unique<BorrowedSession>(std::move(theirs));
  return result;
}

}  // namespace gpuwire::client
