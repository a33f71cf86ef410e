// A table behind cuGetExportTable, for gpuwire's own programs: they use the session code of the installation's
// libcuda.so.1, instead of each carrying a TLS library. Both sides are of one build; `release` proves it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cuda.h>

#include "client_stub/session/server_offer.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

inline constexpr CUuuid kSessionTableId{
    {'g', 'p', 'u', 'w', 'i', 'r', 'e', ' ', 's', 'e', 's', 's', 'i', 'o', 'n', 's'}};

struct SessionTable {
  uint64_t bytes = sizeof(SessionTable);
  const char* release = GPUWIRE_VERSION;
  CUresult (*connect)(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                      std::string& error, SessionKind kind) = nullptr;
  CUresult (*ask)(std::string_view server, const std::string& query, std::string& answer, std::string& error) = nullptr;
  void (*survey)(const std::vector<std::string>& servers, std::vector<ServerOffer>& offers) = nullptr;
};

}  // namespace gpuwire::client
