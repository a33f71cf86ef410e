// `gpuwire attach` on folders that stand for a machine's or an image's root. test/packaging/attach_test.py tests the
// loader with real systems.
#include <doctest/doctest.h>

#include "client_stub/launcher/attach.hpp"
#include "client_stub/launcher/loader_folders.hpp"
#include "test/client_stub/launcher/installation.hpp"

using namespace gpuwire::test;
using gpuwire::launcher::driver_library;
using gpuwire::launcher::loader_folders;

namespace {

// An installation, and an empty system with glibc and Debian's ld.so.conf.
struct Roots : Installation {
  Roots() : image(root / "image") {
    write("image/lib64/ld-linux-x86-64.so.2", "");
    write("image/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
    write("image/etc/ld.so.conf.d/x86_64.conf", "# Multiarch support\n/usr/lib/x86_64-linux-gnu\n");
    fs::create_directories(image / "usr/local/bin");
    write("lib/gpuwire/bin/nvidia-smi", "");
    before = tree();
  }
  Outcome attach(std::vector<std::string> words = {"--server", "gpu7:9750"}) const {
    words.insert(words.begin(), {"attach", "--root", image.string()});
    return start(words);
  }
  Outcome detach() const { return start({"detach", "--root", image.string()}); }
  std::string text(const fs::path& file) const { return contents(image / file); }

  // Returns the root's files with their contents, without the loader's caches.
  std::map<std::string, std::string> tree() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(image)) {
      const std::string name = entry.path().lexically_relative(image).string();
      if (name == "etc/ld.so.cache" || name.starts_with("var")) continue;
      files[name] = entry.is_symlink()        ? "-> " + fs::read_symlink(entry.path()).string()
                    : entry.is_regular_file() ? contents(entry.path())
                                              : "folder";
    }
    return files;
  }

  fs::path image;
  std::map<std::string, std::string> before;
};

}  // namespace

TEST_CASE("attach writes the loader's configuration and the settings, once, and detach takes all back") {
  Roots here;
  Outcome attached = here.attach();
  CHECK_MESSAGE(attached.exit_code == 0, attached.err);
  CHECK(has(attached.out, "programs that start now use gpu7:9750"));
  CHECK(has(here.text("etc/ld.so.conf.d/000-gpuwire.conf"), "\n/opt/gpuwire/lib/gpuwire\n"));
  CHECK(has(here.text("etc/gpuwire/attached.env"), "\nGPUWIRE_SERVER=gpu7:9750\n"));
  CHECK(fs::read_symlink(here.image / "usr/local/bin/nvidia-smi") == "/opt/gpuwire/lib/gpuwire/bin/nvidia-smi");
  CHECK(fs::exists(here.image / "opt/gpuwire/lib/gpuwire/libcuda.so.1"));
  CHECK(fs::exists(here.image / "opt/gpuwire/lib/gpuwire/commands/gpuwire-run"));

  const auto once = here.tree();
  Outcome again = here.attach();
  CHECK(again.exit_code == 0);
  CHECK(has(again.out, "everything is attached already"));
  CHECK(here.tree() == once);

  Outcome detached = here.detach();
  CHECK_MESSAGE(detached.exit_code == 0, detached.err);
  CHECK(fs::is_directory(here.image / "opt"));
  fs::remove(here.image / "opt");
  CHECK(here.tree() == here.before);
  CHECK(here.detach().out == "nothing is attached\n");
}

TEST_CASE("attaching another way or to another server replaces what was attached") {
  Roots here;
  here.write("image/etc/gpuwire/client.toml", "server = \"gpu1\"\ngpus = 2\n[profiles.big]\nmemory = \"1GiB\"\n");
  here.write("image/usr/lib/gpuwire/libcuda.so.1", "");
  here.write("image/usr/lib/gpuwire/commands/gpuwire-run", "");
  const auto before = here.tree();
  CHECK(here.attach({"--use", "big"}).exit_code == 0);
  CHECK(
      has(here.text("etc/gpuwire/attached.env"), "GPUWIRE_GPUS=2\nGPUWIRE_MEMORY=1073741824B\nGPUWIRE_SERVER=gpu1\n"));
  CHECK(has(here.text("etc/ld.so.conf.d/000-gpuwire.conf"), "\n/usr/lib/gpuwire\n"));
  CHECK_FALSE(fs::exists(here.image / "opt"));
  CHECK(here.attach().exit_code == 0);
  CHECK(has(here.text("etc/gpuwire/attached.env"), "GPUWIRE_SERVER=gpu7:9750\n"));
  // The path is the later one inside the image.
  CHECK(here.attach({"--token-file", "/run/secrets/gpuwire"}).exit_code == 0);
  CHECK(has(here.text("etc/gpuwire/attached.env"), "GPUWIRE_TOKEN_FILE=/run/secrets/gpuwire\n"));

  CHECK(here.attach({"--with", "profile"}).exit_code == 0);
  CHECK_FALSE(fs::exists(here.image / "etc/gpuwire/attached.env"));
  CHECK_FALSE(fs::exists(here.image / "etc/ld.so.conf.d/000-gpuwire.conf"));
  const std::string script = (here.image / "etc/profile.d/gpuwire.sh").string();
  const auto print = here.script(
      "#!/bin/sh\nset -eu\nunset LD_LIBRARY_PATH GPUWIRE_SERVER GPUWIRE_GPUS\n. \"$1\"\n. "
      "\"$1\"\necho \"$LD_LIBRARY_PATH|$GPUWIRE_SERVER|$GPUWIRE_GPUS|${gpuwire_folder-}\"\n"
      "GPUWIRE_SERVER=x:1 GPUWIRE_GPUS=; . \"$1\"\necho \"$GPUWIRE_SERVER|$GPUWIRE_GPUS\"\n");
  CHECK(here.start({"run", "-s", "x:1", "--", print, script}).out == "/usr/lib/gpuwire|gpu1|2|\nx:1|\n");

  CHECK(here.attach().exit_code == 0);
  CHECK_FALSE(fs::exists(script));
  CHECK(here.detach().exit_code == 0);
  fs::remove(here.image / "etc/profile.d");
  CHECK(here.tree() == before);
}

TEST_CASE("a real driver's library is left alone, and nothing is attached over it unless that is said") {
  Roots here;
  const char* library = "image/usr/lib/x86_64-linux-gnu/libcuda.so.1";
  here.write(library, "the driver's");
  const auto before = here.tree();
  Outcome refused = here.attach();
  CHECK(refused.exit_code == 1);
  CHECK(has(refused.err, "/usr/lib/x86_64-linux-gnu/libcuda.so.1 is the library of a real driver"));
  CHECK(has(refused.err, "--over-driver"));
  CHECK(here.tree() == before);
  CHECK(here.attach({"--over-driver"}).exit_code == 0);
  CHECK(contents(here.root / library) == "the driver's");
}

TEST_CASE("a driver is found in every folder that the loader's configuration names, links and includes alike") {
  Roots here;
  here.write("image/etc/ld.so.conf.d/x.conf", "include more/*.conf\n/opt/one # the first\n\n  /opt/two\t\n");
  here.write("image/etc/ld.so.conf.d/more/y.conf", "/opt/three\ninclude /etc/ld.so.conf\n");
  const auto folders = loader_folders(here.image);
  auto knows = [&](const char* folder) { return std::find(folders.begin(), folders.end(), folder) != folders.end(); };
  for (const char* folder : {"/opt/one", "/opt/two", "/opt/three", "/usr/lib/x86_64-linux-gnu"}) CHECK(knows(folder));

  const fs::path own = here.root / "lib/gpuwire";
  CHECK_FALSE(driver_library(here.image, own));
  fs::create_directories(here.image / "opt/three");
  fs::create_symlink("/only/inside/libnvidia-ml.so.580", here.image / "opt/three/libnvidia-ml.so.1");
  CHECK(driver_library(here.image, own) == here.image / "opt/three/libnvidia-ml.so.1");
  // The library of another gpuwire installation is no driver.
  here.write("image/opt/three/commands/gpuwire-run", "");
  CHECK_FALSE(driver_library(here.image, own));
}

TEST_CASE("Files that others have written are not overwritten and not removed") {
  for (const char* file : {"etc/ld.so.conf.d/000-gpuwire.conf", "etc/gpuwire/attached.env", "opt/gpuwire/.attached"}) {
    Roots here;
    here.write(fs::path("image") / file, "mine\n");
    Outcome refused = here.attach();
    CHECK(refused.exit_code == 1);
    CHECK(has(refused.err, "not written by gpuwire attach"));
    here.detach();
    CHECK(here.text(file) == "mine\n");
  }
  Roots here;
  here.write("image/usr/local/bin/nvidia-smi", "mine");
  CHECK(here.attach().exit_code == 0);
  CHECK(here.detach().exit_code == 0);
  CHECK(here.text("usr/local/bin/nvidia-smi") == "mine");
}

TEST_CASE("attach says what is missing or wrong before it writes anything") {
  Roots here;
  auto refused = [&](std::vector<std::string> words, const char* why) {
    Outcome outcome = here.attach(std::move(words));
    CHECK(outcome.exit_code == 1);
    CHECK_MESSAGE(has(outcome.err, why), outcome.err);
    CHECK(here.tree() == here.before);
  };
  refused({"--server", "gpu7:99999"}, "gpu7:99999: ");
  refused({"--identity", "anna.pem"}, "whole path");
  refused({"--use", "big"}, "there is no profile \"big\"");
  CHECK(here.attach({"--with", "magic"}).exit_code == 2);
  CHECK(here.start({"attach", "--root", "/no/such/root"}).exit_code == 1);

  here.write("image/etc/ld.so.conf", "/usr/lib\n");
  here.before = here.tree();
  refused({}, "--with profile");
  CHECK(here.attach({"--with", "profile"}).exit_code == 0);
  CHECK(here.detach().exit_code == 0);
  Roots musl;
  fs::remove_all(musl.image / "lib64");
  CHECK(has(musl.attach().err, "need glibc 2.31"));
}

TEST_CASE("without a server the programs' own environment is pointed to") {
  Roots here;
  Outcome attached = here.attach({});
  CHECK(attached.exit_code == 0);
  CHECK(has(attached.out, "no server is named"));
  CHECK_FALSE(has(here.text("etc/gpuwire/attached.env"), "GPUWIRE_SERVER"));
}

TEST_CASE("the commands of an installation without links are found in the programs that have them") {
  Installation here;
  fs::remove(here.root / "lib/gpuwire/commands/gpuwire-env");
  CHECK(has(here.start({"--help"}).out, "\n  env "));
  CHECK(has(here.start({"env", "-s", "x:1"}).out, "export GPUWIRE_SERVER='x:1';"));
  CHECK(here.start({"queue", "--version"}).out == "gpuwire " GPUWIRE_VERSION "\n");
}
