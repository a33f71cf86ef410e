// Prefetched libraries and modules: when the program first uses one that earlier runs of it have used, the server is
// asked to load the others that it has, together with their kernels and the recorded questions about these. Nobody
// waits for that. The program's own use of such an image then finds it loaded, and costs no round trip.
//
// The requests are those that the program would make: the images are loaded by digest, under handles of our own, behind
// its first image. If one fails, the program asks and gets the error by itself. An image without a use stays loaded
// until the session ends, or until memory is short: unloading one may wait for work.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "client_stub/driver/state/warm_start/profiled_images.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct Caller;
struct ContextState;
struct ModuleState;

inline constexpr size_t kPrefetchedImagesMax = 64;
// Kernels, and questions about them: the image that reaches this number is the last.
inline constexpr size_t kPrefetchedImageQuestionsMax = 2048;

// Of one session; any thread. mutex_ is held while frames are sent: outside the send lock, inside a module's own.
class PrefetchedImages final : public SessionPart {
 public:
  explicit PrefetchedImages(SessionParts& parts) noexcept;
  ~PrefetchedImages() override;

  // The loading of this image has been sent and is about to be waited for. The first time that this is one of those
  // known, in a context, the others are asked for there.
  void prefetch(const Caller& caller, const ProgramImage::Digest& now);
  // Makes a library or module of the program's, not loaded yet, the prefetched one in this context: its kernels are
  // known then. The library's handle at the server is `came_as`; a module, which must have no handle yet, gets that
  // one. False: none was prefetched, or its loading failed. May wait for requests that are still in flight. With the
  // state's mutex, if others know it.
  bool take(const Caller& caller, const ProgramImage::Digest& image, ModuleState& state);
  // A kernel of an image was used for the first time in this run.
  void used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel);
  // The context is about to end, and with it the modules that nobody has taken. May wait for requests in flight.
  void forget(const ContextState& context) noexcept;
  // Unloads untaken images. False: there is none, or a capture is active, which unloading would disturb.
  bool give_back(const Caller& caller) noexcept;

  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // nobody there sends

 private:
  class Image;
  std::unique_ptr<Image> begin(const Caller& caller, const ProfiledImage& image);
  // The first such one, which is nobody's then.
  template <class Choose>
  std::unique_ptr<Image> take_out(Choose&& choose);
  ProfiledImages& known() REQUIRES(mutex_);

  Mutex mutex_;
  std::optional<ProfiledImages> known_ GUARDED_BY(mutex_);  // once the program uses an image
  bool looked_ GUARDED_BY(mutex_) = false;
  std::vector<ProgramImage::Digest> asked_for_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Image>> images_ GUARDED_BY(mutex_);  // that nobody has taken
};

}  // namespace gpuwire::client
