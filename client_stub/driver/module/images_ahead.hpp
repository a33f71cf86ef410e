// Libraries on their way ahead of the program: when it first uses one that earlier runs of it have used, the server is
// asked to load the others that it has, together with their kernels and what is known to be asked about these. Nobody
// waits for that. The program's own use of such a library finds it loaded, and costs a round trip no more.
//
// What is asked for is what the program would ask for: loaded by digest, under handles of our own, behind its first
// library. What fails is not there, and the program asks and gets the error by itself. A library that it does not come
// to use stays loaded until the session ends, or until memory is short: unloading one may wait for work.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client_stub/driver/module/known_images.hpp"
#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

struct Caller;
struct ModuleState;

inline constexpr size_t kImagesAheadMax = 64;
// Kernels, and questions about them: the library that comes to so many is the last.
inline constexpr size_t kImageQuestionsAheadMax = 2048;

// Of one session; any thread. mutex_ is held while frames are sent: outside the send lock, inside a module's own.
class ImagesAhead final : public SessionPart {
 public:
  explicit ImagesAhead(SessionParts& parts) noexcept;
  ~ImagesAhead() override;

  // The loading of this image has been sent and is about to be waited for. The first time that this is one of those
  // known, in a context, the others are asked for there.
  void look(const Caller& caller, const ProgramImage::Digest& now);
  // Makes a library of the program's, not loaded yet, the one that has come ahead in this context: its kernels are
  // known then, under the handle `came_as`. False: none has, or not well. May wait for what is still on its way. With
  // the library's mutex.
  bool take(const Caller& caller, const ProgramImage::Digest& image, ModuleState& library);
  // A kernel of a library was used for the first time in this run.
  void used(const ProgramImage::Digest& image, std::string_view kernel);
  // Unloads what nobody has taken. False: there is none, or something is captured, which unloading would disturb.
  bool give_back(const Caller& caller) noexcept;

  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // nobody there sends

 private:
  class Library;
  std::unique_ptr<Library> begin(const Caller& caller, const KnownImage& image);
  KnownImages& known();

  std::mutex mutex_;
  std::optional<KnownImages> known_;  // once the program uses a library
  bool looked_ = false;
  std::vector<ProgramImage::Digest> asked_for_;
  std::vector<std::unique_ptr<Library>> libraries_;  // that nobody has taken
};

}  // namespace gpuwire::client
