#include "client_stub/nvidia_smi/library.hpp"

#include <algorithm>
#include <filesystem>

namespace gpuwire::nvidia_smi {

namespace {

constexpr const char* kName = "libnvidia-ml.so.1";

// Opens the library in LD_LIBRARY_PATH, then in this installation: DIR/bin/nvidia-smi uses DIR/libnvidia-ml.so.1.
void* open_library() {
  if (void* handle = ::dlopen(kName, RTLD_NOW)) return handle;
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return ::dlopen((program.parent_path().parent_path() / kName).c_str(), RTLD_NOW);
}

}  // namespace

Library::Library() : handle_(open_library()) {
  if (handle_) status_ = call("nvmlInit_v2");
}

Library::~Library() {
  if (status_ == nvml::kSuccess) call("nvmlShutdown");
}

std::string Library::error_text(int status) const {
  auto text = handle_ ? reinterpret_cast<const char* (*)(int)>(::dlsym(handle_, "nvmlErrorString")) : nullptr;
  return text ? text(status) : "Unknown Error";
}

std::vector<Card> all_cards(const Library& library) {
  unsigned count = 0;
  std::vector<Card> cards;
  library.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    Card card{library, nullptr, i, count};
    if (library.call("nvmlDeviceGetHandleByIndex_v2", i, &card.device) == nvml::kSuccess) cards.push_back(card);
  }
  return cards;
}

std::vector<Card> find_cards(const Library& library, const std::string& names) {
  std::vector<Card> all = all_cards(library), found;
  std::vector<bool> chosen(all.size());
  for (size_t begin = 0; begin <= names.size();) {
    size_t end = std::min(names.find(',', begin), names.size());
    std::string name = names.substr(begin, end - begin);
    begin = end + 1;
    nvmlDevice device = nullptr;
    bool index = !name.empty() && name.size() < 5 &&
                 std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    int status = index ? library.call("nvmlDeviceGetHandleByIndex_v2", unsigned(std::stoul(name)), &device)
                       : int(nvml::kNotFound);
    for (const char* by :
         {"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleBySerial"})
      if (status != nvml::kSuccess) status = library.call(by, name.c_str(), &device);
    auto card = std::find_if(all.begin(), all.end(),
                             [&](const Card& one) { return status == nvml::kSuccess && one.device == device; });
    if (card == all.end()) return {};
    chosen[size_t(card - all.begin())] = true;
  }
  for (size_t i = 0; i < all.size(); ++i)
    if (chosen[i]) found.push_back(all[i]);
  return found;
}

}  // namespace gpuwire::nvidia_smi
