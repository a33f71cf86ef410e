#include "client_stub/launcher/attach.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/loader_folders.hpp"

namespace gpuwire::launcher {

namespace {

namespace fs = std::filesystem;
using Failure = tl::unexpected<std::string>;
using Result = tl::expected<void, std::string>;

constexpr const char* kLoaderInclude = "include /etc/ld.so.conf.d/*.conf";
// A file in the folder of a copied client: it marks the folder as gpuwire's and names the release.
constexpr const char* kCopyMark = ".attached";
// The files of a client besides the commands (packaging/README.md), below lib/gpuwire.
constexpr std::array kClientParts = {"libcuda.so",         "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1",
                                     "libgpuwire_rdma.so", "bin",          "python"};

Failure failed(const std::string& what, const fs::path& path, std::error_code error) {
  const char* hint = error == std::errc::permission_denied ? "; this needs root" : "";
  return Failure("cannot " + what + " " + path.string() + ": " + error.message() + hint);
}

std::optional<std::string> text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

bool is_by_attach(const fs::path& file) {
  const auto text = text_of(file);
  return text && text->starts_with(kWrittenByAttach);
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  const auto text = text_of(one);
  return text && text == text_of(other);
}

// Replaces the file atomically, so that no reader gets a partial file.
Result replace_file(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) return failed("make", file.parent_path(), error);
  const fs::path next = file.string() + ".new";
  std::ofstream out(next, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return failed("write", next, std::error_code(errno, std::generic_category()));
  fs::permissions(next, fs::perms(0644), error);
  if (!error) fs::rename(next, file, error);
  if (error) return failed("write", file, error);
  return {};
}

// One attach() or detach() of a root.
class Work {
 public:
  explicit Work(fs::path root) : root_(std::move(root)) {}

  Result attach(const Attachment& wanted, const fs::path& prefix);
  Result detach();
  std::vector<std::string> changes;

 private:
  fs::path below(const fs::path& inside) const { return root_ / inside.relative_path(); }
  bool is_whole_machine() const { return root_ == "/"; }
  void did(const char* what, const fs::path& path) { changes.push_back(std::string(what) + " " + path.string()); }

  Result check_root(AttachMode mode) const;
  Result check_driver(const fs::path& folder) const;
  tl::expected<fs::path, std::string> client_folder(const fs::path& prefix);
  Result copy_client(const fs::path& prefix);
  Result write(const fs::path& inside, const std::string& text);
  Result remove(const fs::path& inside);
  Result link_smi(const fs::path& folder);
  Result remove_smi_link();
  Result remove_copy();
  Result run_ldconfig() const;

  const fs::path root_;
};

// The client's libraries must run in the root, and its loader must read the configuration.
Result Work::check_root(AttachMode mode) const {
  std::error_code error;
  if (!fs::is_directory(root_, error)) return Failure(root_.string() + " is not a folder");
  if (!is_there(below("lib64/ld-linux-x86-64.so.2")) && !is_there(below("usr/lib64/ld-linux-x86-64.so.2")))
    return Failure(root_.string() +
                   " has no /lib64/ld-linux-x86-64.so.2: gpuwire's libraries need glibc 2.31 or later");
  if (mode == AttachMode::profile) return {};
  const std::string configuration = text_of(below("etc/ld.so.conf")).value_or("");
  if (configuration.find("ld.so.conf.d/*.conf") == std::string::npos)
    return Failure(below("etc/ld.so.conf").string() + " does not have the line \"" + kLoaderInclude +
                   "\": add it, or attach by --with profile");
  return {};
}

Result Work::check_driver(const fs::path& folder) const {
  const auto found = driver_library(root_, folder);
  if (!found) return {};
  return Failure(found->string() +
                 " is the library of a real driver, which programs would no longer use; --over-driver attaches all the "
                 "same, and leaves that library as it is");
}

// Returns the folder's name inside the root.
tl::expected<fs::path, std::string> Work::client_folder(const fs::path& prefix) {
  const fs::path folder = prefix / "lib/gpuwire";
  if (!is_there(folder / "libcuda.so.1"))
    return Failure((folder / "libcuda.so.1").string() + " is missing; the installation of gpuwire is incomplete");
  if (is_whole_machine()) return folder;
  const fs::path inside = folder.lexically_relative(root_);
  if (!inside.empty() && *inside.begin() != "..") return "/" / inside;
  if (const fs::path packaged = "/usr/lib/gpuwire"; is_there(below(packaged / "libcuda.so.1"))) return packaged;
  if (auto copied = copy_client(prefix); !copied) return Failure(copied.error());
  return fs::path("/") / kClientCopy / "lib/gpuwire";
}

Result Work::copy_client(const fs::path& prefix) {
  const fs::path to = below(kClientCopy), mark = to / kCopyMark;
  const std::string marked = std::string(kWrittenByAttach) + GPUWIRE_VERSION "\n";
  const fs::path library = "lib/gpuwire/libcuda.so.1", program = "lib/gpuwire/commands/gpuwire-run";
  if (is_there(to) && !is_by_attach(mark)) return Failure(to.string() + " is there, and not written by gpuwire attach");
  if (text_of(mark) == marked && is_same_file(prefix / library, to / library) &&
      is_same_file(prefix / program, to / program))
    return {};
  if (auto removed = remove_copy(); !removed) return removed;
  // The mark is written first, so that a later run recognises the remains of an interrupted copy.
  if (auto written = replace_file(mark, marked); !written) return written;
  std::vector<fs::path> parts{"bin/gpuwire"};
  for (const char* part : kClientParts) parts.push_back(fs::path("lib/gpuwire") / part);
  for (const std::string& command : client_commands())
    parts.push_back(fs::path("lib/gpuwire/commands") / ("gpuwire-" + command));
  for (const fs::path& part : parts) {
    if (!is_there(prefix / part)) continue;
    std::error_code error;
    fs::create_directories((to / part).parent_path(), error);
    if (!error)
      fs::copy(prefix / part, to / part, fs::copy_options::recursive | fs::copy_options::copy_symlinks, error);
    if (error) return failed("write", to / part, error);
  }
  did("copied the client to", to);
  return {};
}

Result Work::write(const fs::path& inside, const std::string& text) {
  const fs::path file = below(inside);
  if (is_there(file) && !is_by_attach(file))
    return Failure(file.string() + " is there, and not written by gpuwire attach");
  if (text_of(file) == text) return {};
  if (auto written = replace_file(file, text); !written) return written;
  did("wrote", file);
  return {};
}

Result Work::remove(const fs::path& inside) {
  const fs::path file = below(inside);
  if (!is_there(file)) return {};
  if (!is_by_attach(file)) return Failure(file.string() + " was not written by gpuwire attach, and stays");
  std::error_code error;
  if (!fs::remove(file, error)) return failed("remove", file, error);
  did("removed", file);
  return {};
}

// Makes the link only if the name is free.
Result Work::link_smi(const fs::path& folder) {
  const fs::path link = below(kSmiLink), program = folder / "bin/nvidia-smi";
  std::error_code error;
  if (fs::read_symlink(link, error) == program) return {};
  if (is_there(link) || !is_there(link.parent_path())) return {};
  fs::create_symlink(program, link, error);
  if (error) return failed("make", link, error);
  did("linked", link);
  return {};
}

Result Work::remove_smi_link() {
  const fs::path link = below(kSmiLink);
  std::error_code error;
  if (!fs::read_symlink(link, error).string().ends_with("/lib/gpuwire/bin/nvidia-smi")) return {};
  if (!fs::remove(link, error)) return failed("remove", link, error);
  did("removed", link);
  return {};
}

Result Work::remove_copy() {
  const fs::path copy = below(kClientCopy);
  if (!is_by_attach(copy / kCopyMark)) return {};
  std::error_code error;
  fs::remove_all(copy, error);
  if (error) return failed("remove", copy, error);
  did("removed", copy);
  return {};
}

// Rebuilds the loader's cache. -X: without changes to links in the libraries' folders.
Result Work::run_ldconfig() const {
  const char* program = access("/sbin/ldconfig", X_OK) == 0 ? "/sbin/ldconfig" : "/usr/sbin/ldconfig";
  std::vector<std::string> words{program, "-X"};
  if (!is_whole_machine()) words.insert(words.end(), {"-r", root_.string()});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t child = -1;
  if (int error = posix_spawn(&child, program, nullptr, nullptr, arguments.data(), environ))
    return failed("start", program, std::error_code(error, std::generic_category()));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return Failure(std::string(program) + " failed: programs go on finding what they found before");
  return {};
}

// The script adds each folder to LD_LIBRARY_PATH and PATH once, even if one login shell starts another.
std::string profile_script(const fs::path& folder, const Environment& settings) {
  return std::string(kWrittenByAttach) + commands_of({{"gpuwire_folder", folder.string()}}, ShellKind::posix) +
         R"(case ":${LD_LIBRARY_PATH-}:" in
*":$gpuwire_folder:"*) ;;
*)
  export LD_LIBRARY_PATH="$gpuwire_folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export PATH="$gpuwire_folder/bin:$PATH"
  if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/nvidia0 ]; then
    export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$gpuwire_folder/python"
  fi ;;
esac
unset gpuwire_folder
if [ -z "${GPUWIRE_SERVER-}" ]; then
:
)" + commands_of(settings, ShellKind::posix) +
         "fi\n";
}

std::string settings_text(const Environment& settings) {
  std::string text = kWrittenByAttach;
  for (const auto& [name, value] : settings) text += name + "=" + value + "\n";
  return text;
}

Result Work::attach(const Attachment& wanted, const fs::path& prefix) {
  if (auto fits = check_root(wanted.mode); !fits) return fits;
  for (const auto& [name, value] : wanted.settings)
    if (value.find('\n') != std::string::npos) return Failure(name + " may not have a line's end in it");
  if (!wanted.over_driver)
    if (auto free = check_driver(prefix / "lib/gpuwire"); !free) return free;
  auto folder = client_folder(prefix);
  if (!folder) return Failure(folder.error());
  // Such a name is valid neither in ld.so.conf nor in LD_LIBRARY_PATH.
  if (folder->string().find_first_of("\n#=:;") != std::string::npos)
    return Failure(folder->string() + " has a character in its name that ld.so's configuration cannot have");

  if (wanted.mode == AttachMode::profile) {
    if (auto written = write(kProfileScript, profile_script(*folder, wanted.settings)); !written) return written;
    for (const char* other : {kLoaderConfiguration, kAttachedSettings})
      if (auto removed = remove(other); !removed) return removed;
    if (auto removed = remove_smi_link(); !removed) return removed;
  } else {
    if (auto written = write(kAttachedSettings, settings_text(wanted.settings)); !written) return written;
    if (auto written = write(kLoaderConfiguration, kWrittenByAttach + folder->string() + "\n"); !written)
      return written;
    if (auto linked = link_smi(*folder); !linked) return linked;
    if (auto removed = remove(kProfileScript); !removed) return removed;
  }
  return changes.empty() ? Result() : run_ldconfig();
}

Result Work::detach() {
  for (const char* file : {kLoaderConfiguration, kProfileScript, kAttachedSettings})
    if (auto removed = remove(file); !removed) return removed;
  if (auto removed = remove_smi_link(); !removed) return removed;
  if (auto removed = remove_copy(); !removed) return removed;
  if (changes.empty()) return {};
  // attach() has made it where there was none.
  std::error_code others_are_in_it;
  fs::remove(below("etc/gpuwire"), others_are_in_it);
  return run_ldconfig();
}

tl::expected<fs::path, std::string> whole_path(const fs::path& root) {
  std::error_code error;
  fs::path found = fs::canonical(root, error);
  if (error) return Failure(root.string() + ": " + error.message());
  return found;
}

}  // namespace

Changes attach(const Attachment& wanted, const fs::path& prefix) {
  auto root = whole_path(wanted.root);
  if (!root) return Failure(root.error());
  Work work(*root);
  if (auto done = work.attach(wanted, prefix); !done) return Failure(done.error());
  return work.changes;
}

Changes detach(const fs::path& root) {
  auto whole = whole_path(root);
  if (!whole) return Failure(whole.error());
  Work work(*whole);
  if (auto done = work.detach(); !done) return Failure(done.error());
  return work.changes;
}

}  // namespace gpuwire::launcher
