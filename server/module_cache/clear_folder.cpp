#include "server/module_cache/clear_folder.hpp"

#include <cerrno>
#include <string>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {
namespace {

// Also opens a folder whose creator has removed its own permissions. Uses the descriptor, because the name may be a
// link by now.
OwnedDescriptor open_folder(int in, const char* name) {
  OwnedDescriptor place(::openat(in, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!place) return {};
  ::chmod(("/proc/self/fd/" + std::to_string(place.get())).c_str(), 0700);
  return OwnedDescriptor(::openat(place.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool remove_entry(int folder, const char* name) {
  return ::unlinkat(folder, name, 0) == 0 ||
         ((errno == EISDIR || errno == EPERM) && ::unlinkat(folder, name, AT_REMOVEDIR) == 0);
}

// Calls `visit` with each name in the folder, until it returns false.
template <class Visit>
void each_entry(int folder, Visit&& visit) {
  DIR* entries = ::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!entries) return;
  while (const dirent* entry = ::readdir(entries)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && !visit(entry->d_name)) break;
  }
  ::closedir(entries);
}

class Clearing {
 public:
  Clearing(OwnedDescriptor folder, size_t entries_max) : folder_(std::move(folder)), left_(entries_max) {}

  // The number of passes that remove or move entries: only the next pass may see an entry that was moved up.
  bool run() {
    bool empty = false;
    do {
      changed_ = false;
      empty = true;
      each_entry(folder_.get(), [&](const char* name) {
        empty = take(name) && empty;
        return left_ != 0;
      });
    } while (!empty && changed_ && left_ != 0);
    return empty;
  }

 private:
  // Removes an entry of the folder. False: it still exists, or its content was moved up.
  bool take(const char* name) {
    if (!count(remove_entry(folder_.get(), name))) {
      bool moved = false;
      if (OwnedDescriptor inside = open_folder(folder_.get(), name)) {
        each_entry(inside.get(), [&](const char* inner) {
          if (!count(remove_entry(inside.get(), inner))) moved = count(move_up(inside.get(), inner)) || moved;
          return left_ != 0;
        });
      }
      return remove_entry(folder_.get(), name) && !moved;
    }
    return true;
  }
  bool move_up(int from, const char* name) {
    return ::renameat(from, name, folder_.get(), (".moved-" + std::to_string(moves_++)).c_str()) == 0;
  }
  bool count(bool done) {
    if (left_ != 0) --left_;
    changed_ = changed_ || done;
    return done;
  }

  const OwnedDescriptor folder_;
  size_t left_;
  size_t moves_ = 0;
  bool changed_ = false;
};

}  // namespace

bool clear_folder(const std::filesystem::path& folder, size_t entries_max) {
  OwnedDescriptor opened = open_folder(AT_FDCWD, folder.c_str());
  return opened && Clearing(std::move(opened), entries_max).run();
}

}  // namespace gpuwire::server
