#include "client_stub/driver/state/module/prefetched_images.hpp"

#include <algorithm>
#include <utility>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/warm_start/program_name.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"

namespace gpuwire::client {

// A prefetched image: its load, its kernels, and the queries about them.
class PrefetchedImages::Image {
 public:
  Image(const Caller& caller, const ProfiledImage& image) : image_(image.digest), context_(caller.context) {
    module_.kind = image.kind;
    if (module_.kind == wire::HandleKind::module) module_.context = owner(caller);
    module_.handle = handles().create(module_.kind, caller.server);
    note_image(module_, image.digest);
  }
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
  ~Image() {
    for (auto& [name, function] : module_.functions) handles().forget(function->kind, function->handle);
    if (module_.handle) handles().forget(module_.kind, module_.handle);
  }

  bool is(const Caller& caller, wire::HandleKind kind, const ProgramImage::Digest& image) const noexcept {
    return context_ == caller.context && module_.kind == kind && image_ == image;
  }

  bool ends_with(const ContextState& context) const noexcept { return module_.context == &context; }

  // Returns false if not all frames were sent.
  bool begin(const Caller& caller, const std::string& kernel) {
    if (!module_.handle || questions_.add(caller, kernel)) return false;
    questions_.prefetch(caller);
    if (send::begin_module_load(*caller.session, caller.context, {.handle = module_.handle, .digest = image_}, load_))
      return false;
    caller.session->set_aside(load_);
    if (questions_.begin(caller)) return false;
    questions_.set_aside(caller);
    return true;
  }
  size_t questions() const noexcept { return questions_.size(); }

  // Reads all answers. Returns false if the image is not loaded.
  bool finish(const Caller& caller) {
    const CUresult loaded = send::finish_module_load(*caller.session, load_, [](schema::ModuleLoadReply::Reader) {});
    static_cast<void>(questions_.finish(caller));
    if (loaded == CUDA_SUCCESS && module_.loaded) unload(caller);
    return loaded == CUDA_SUCCESS && !module_.loaded;
  }
  // Precondition: finish() has returned.
  void become(ModuleState& state) {
    for (auto& [name, function] : module_.functions) function->module = &state;
    state.functions = std::exchange(module_.functions, {});
    (state.handle ? state.came_as : state.handle) = std::exchange(module_.handle, 0);
    state.images_prefetched = true;
  }
  void unload(const Caller& caller) const noexcept {
    send::post_module_unload(*caller.session, caller.context, {.handle = module_.handle});
  }

 private:
  const ProgramImage::Digest image_;
  const uint32_t context_;
  uint64_t load_ = 0;
  ModuleState module_;  // a placeholder for the program's module; no one else has its handle
  FunctionQuestions questions_{module_};
};

PrefetchedImages::PrefetchedImages(SessionParts& parts) noexcept : SessionPart(parts) {}

PrefetchedImages::~PrefetchedImages() = default;

ProfiledImages& PrefetchedImages::known() {
  if (!known_) known_.emplace(std::make_shared<WarmStart>(warm_start_folder(), own_program_digest()));
  return *known_;
}

std::unique_ptr<PrefetchedImages::Image> PrefetchedImages::begin(const Caller& caller, const ProfiledImage& image) {
  auto out = std::make_unique<Image>(caller, image);
  if (!out->begin(caller, image.kernel)) out.reset();
  return out;
}

void PrefetchedImages::prefetch(const Caller& caller, const ProgramImage::Digest& now) {
  MutexLock lock(mutex_);
  if (looked_ || !caller.context || !caller.state || caller.server->captures.any() || !known().holds(now)) return;
  looked_ = true;
  size_t questions = 0;
  for (const ProfiledImage& image : known().earlier()) {
    if (images_.size() == kPrefetchedImagesMax || questions >= kPrefetchedImageQuestionsMax) return;
    if (image.digest == now || known().is_used(image.digest)) continue;
    auto ahead = begin(caller, image);
    if (!ahead) return;
    questions += ahead->questions();
    asked_for_.push_back(image.digest);
    images_.push_back(std::move(ahead));
  }
}

template <class Choose>
std::unique_ptr<PrefetchedImages::Image> PrefetchedImages::take_out(Choose&& choose) {
  MutexLock lock(mutex_);
  auto at = std::find_if(images_.begin(), images_.end(), [&](const auto& one) { return choose(*one); });
  if (at == images_.end()) return nullptr;
  std::unique_ptr<Image> out = std::move(*at);
  images_.erase(at);
  return out;
}

bool PrefetchedImages::take(const Caller& caller, const ProgramImage::Digest& image, ModuleState& state) {
  const std::unique_ptr<Image> found = take_out([&](const Image& one) { return one.is(caller, state.kind, image); });
  if (!found || !found->finish(caller)) return false;
  found->become(state);
  return true;
}

void PrefetchedImages::used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel) {
  MutexLock lock(mutex_);
  known().used(kind, image, kernel);
}

void PrefetchedImages::forget(const ContextState& context) noexcept {
  Caller caller;
  caller.server = context.server;
  caller.session = &context.server->connection();
  while (auto gone = take_out([&](const Image& one) { return one.ends_with(context); })) gone->finish(caller);
}

bool PrefetchedImages::give_back(const Caller& caller) noexcept {
  std::vector<std::unique_ptr<Image>> images;
  {
    MutexLock lock(mutex_);
    if (images_.empty() || caller.server->captures.any()) return false;
    images.swap(images_);
  }
  bool any = false;
  for (auto& image : images) {
    if (!image->finish(caller)) continue;
    image->unload(caller);
    any = true;
  }
  return any;
}

void PrefetchedImages::ended(SessionEnd how) noexcept {
  if (how != SessionEnd::closed) return;
  if (!mutex_.try_lock()) return;
  const MutexLock lock(mutex_, std::adopt_lock);
  if (!known_) return;
  const auto used =
      std::count_if(asked_for_.begin(), asked_for_.end(),
                    [&](const ProgramImage::Digest& image) REQUIRES(mutex_) { return known_->is_used(image); });
  if (2 * size_t(used) < asked_for_.size()) known_->forget_unused();
}

}  // namespace gpuwire::client
