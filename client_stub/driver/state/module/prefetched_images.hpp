// Prefetched libraries and modules. When the program first uses an image that its earlier runs have used, the client
// requests the loads of the others that the server has, with their kernels and the recorded questions about these, and
// waits for none of them. The program's own use of such an image then finds it loaded, and costs no round trip.
//
// The requests are those that the program would make: the images are loaded by digest, under handles of the client,
// after the program's first image. If one fails, the program's own request gets the error. An image without a use stays
// loaded until the session ends, or until memory is short, because an unload may wait for work.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "client_stub/driver/state/warm_start/profiled_images.hpp"
#include "client_stub/driver/state/module/program_image.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct Caller;
struct ContextState;
struct ModuleState;

inline constexpr size_t kPrefetchedImagesMax = 64;
// The kernels, and questions about them. The image that reaches this number is the last.
inline constexpr size_t kPrefetchedImageQuestionsMax = 2048;

// The prefetched images of one session. Any thread. mutex_ is held while frames are sent: outside the send lock, inside
// a module's own.
class PrefetchedImages final : public SessionPart {
 public:
  explicit PrefetchedImages(SessionParts& parts) noexcept;
  ~PrefetchedImages() override;

  // Called when the load of this image has been sent and is about to be waited for. For the first recorded image in a
  // context, requests the others there.
  void prefetch(const Caller& caller, const ProgramImage::Digest& now);
  // Makes a library or module of the program, not loaded yet, the prefetched one in this context, whose kernels are
  // known. The library's handle at the server is `came_as`; a module, which must have no handle yet, gets that handle.
  // Returns false if none was prefetched, or its load failed. May wait for requests in flight. Lock: the state's mutex,
  // if other threads have the state.
  bool take(const Caller& caller, const ProgramImage::Digest& image, ModuleState& state);
  // Notes the first use of a kernel of an image in this run.
  void used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel);
  // Drops the modules that the program has not taken of a context that is about to end. May wait for requests in
  // flight.
  void forget(const ContextState& context) noexcept;
  // Unloads untaken images. Returns false if there is none, or a capture is active, which an unload would disturb.
  bool give_back(const Caller& caller) noexcept;

  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // a child sends nothing

 private:
  class Image;
  std::unique_ptr<Image> begin(const Caller& caller, const ProfiledImage& image);
  // Removes and returns the first chosen image.
  template <class Choose>
  std::unique_ptr<Image> take_out(Choose&& choose);
  ProfiledImages& known() REQUIRES(mutex_);

  Mutex mutex_;
  // Set once the program uses an image.
  std::optional<ProfiledImages> known_ GUARDED_BY(mutex_);
  bool looked_ GUARDED_BY(mutex_) = false;
  std::vector<ProgramImage::Digest> asked_for_ GUARDED_BY(mutex_);
  // The images that the program has not taken.
  std::vector<std::unique_ptr<Image>> images_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
