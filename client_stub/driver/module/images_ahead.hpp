// Libraries and modules on their way ahead of the program: when it first uses one that earlier runs of it have used,
// the server is asked to load the others that it has, together with their kernels and what is known to be asked about
// these. Nobody waits for that. The program's own use of such an image finds it loaded, and costs a round trip no more.
//
// What is asked for is what the program would ask for: loaded by digest, under handles of our own, behind its first
// image. What fails is not there, and the program asks and gets the error by itself. An image that it does not come to
// use stays loaded until the session ends, or until memory is short: unloading one may wait for work.
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
struct ContextState;
struct ModuleState;

inline constexpr size_t kImagesAheadMax = 64;
// Kernels, and questions about them: the image that comes to so many is the last.
inline constexpr size_t kImageQuestionsAheadMax = 2048;

// Of one session; any thread. mutex_ is held while frames are sent: outside the send lock, inside a module's own.
class ImagesAhead final : public SessionPart {
 public:
  explicit ImagesAhead(SessionParts& parts) noexcept;
  ~ImagesAhead() override;

  // The loading of this image has been sent and is about to be waited for. The first time that this is one of those
  // known, in a context, the others are asked for there.
  void look(const Caller& caller, const ProgramImage::Digest& now);
  // Makes a library or module of the program's, not loaded yet, the one that has come ahead in this context: its
  // kernels are known then. The library's handle at the server is `came_as`; a module, which must have no handle yet,
  // gets that one. False: none has come, or not well. May wait for what is still on its way. With the state's mutex,
  // where others know it.
  bool take(const Caller& caller, const ProgramImage::Digest& image, ModuleState& state);
  // A kernel of an image was used for the first time in this run.
  void used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel);
  // The context is about to end, and modules with it: those that nobody has taken. May wait for what is on its way.
  void forget(const ContextState& context) noexcept;
  // Unloads what nobody has taken. False: there is none, or something is captured, which unloading would disturb.
  bool give_back(const Caller& caller) noexcept;

  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // nobody there sends

 private:
  class Image;
  std::unique_ptr<Image> begin(const Caller& caller, const KnownImage& image);
  // The first such one, which is nobody's then.
  template <class Choose>
  std::unique_ptr<Image> take_out(Choose&& choose);
  KnownImages& known();

  std::mutex mutex_;
  std::optional<KnownImages> known_;  // once the program uses an image
  bool looked_ = false;
  std::vector<ProgramImage::Digest> asked_for_;
  std::vector<std::unique_ptr<Image>> images_;  // that nobody has taken
};

}  // namespace gpuwire::client
