#include "server/module_cache/cache_keeper.hpp"
#include "server/module_cache/module_cache.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <vector>

#include "server/base/owned_descriptor.hpp"
#include "test/support/becomes.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

std::vector<std::byte> image(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(bytes);
  for (auto& byte : made) byte = std::byte(random());
  return made;
}

bool same(const std::shared_ptr<const ModuleImage>& found, const std::vector<std::byte>& expected) {
  return found && std::equal(expected.begin(), expected.end(), found->bytes().begin(), found->bytes().end());
}

struct Fixture {
  test::TemporaryDirectory directory;
  fs::path root = directory.path() / "cache";
  std::unique_ptr<ModuleCache> open(uint64_t bytes_max = 1u << 20) {
    auto cache = ModuleCache::open({root, bytes_max});
    REQUIRE_MESSAGE(cache, (cache ? "" : cache.error()));
    return std::move(*cache);
  }
  // Returns the file of the only tenant that has it.
  fs::path object(const std::vector<std::byte>& bytes) {
    for (const auto& tenant : fs::directory_iterator(root / "tenants"))
      if (fs::exists(tenant.path() / hex(sha256(bytes)))) return tenant.path() / hex(sha256(bytes));
    return root / "tenants" / "nobody" / hex(sha256(bytes));
  }
  // Sets the file's last use to that long ago.
  void age(const std::vector<std::byte>& bytes, time_t seconds) {
    timespec then{time(nullptr) - seconds, 0};
    timespec times[] = {then, then};
    REQUIRE(utimensat(AT_FDCWD, object(bytes).c_str(), times, 0) == 0);
  }
};

}  // namespace

TEST_CASE("a digest is that of the standard's example") {
  std::string text = "abc";
  CHECK(hex(sha256(std::as_bytes(std::span(text)))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE_FIXTURE(Fixture, "an inserted image is found, by another opening of the cache too") {
  auto bytes = image(10'000, 1);
  CHECK(open()->insert("", sha256(bytes), bytes));
  CHECK(same(open()->find("", sha256(bytes)), bytes));
  CHECK_FALSE(open()->find("", sha256(image(10, 2))));
}

TEST_CASE_FIXTURE(Fixture, "zeros follow an image of any size") {
  auto cache = open();
  for (size_t size : {1ul, 4095ul, 4096ul, 4097ul, 8192ul}) {
    auto bytes = image(size, unsigned(size));
    REQUIRE(cache->insert("", sha256(bytes), bytes));
    auto found = cache->find("", sha256(bytes));
    REQUIRE(same(found, bytes));
    for (size_t i = 0; i < 4096; ++i) REQUIRE(found->bytes().data()[size + i] == std::byte{0});
    auto created = ModuleImage::create(size);
    for (size_t i = 0; i < 4096; ++i) REQUIRE(created->bytes().data()[size + i] == std::byte{0});
  }
}

TEST_CASE_FIXTURE(Fixture, "a tenant finds what it has sent itself, and nothing that others have") {
  auto cache = open();
  auto bytes = image(5000, 3);
  cache->insert("red", sha256(bytes), bytes);
  CHECK(cache->find("red", sha256(bytes)));
  CHECK_FALSE(cache->find("blue", sha256(bytes)));
  CHECK_FALSE(cache->find("", sha256(bytes)));
  cache->insert("blue", sha256(bytes), bytes);
  CHECK(cache->find("blue", sha256(bytes)));
}

TEST_CASE_FIXTURE(Fixture, "one tenant's images change no file of another's") {
  auto cache = open();
  auto bytes = image(5000, 3);
  cache->insert("red", sha256(bytes), bytes);
  age(bytes, 300);
  fs::path reds = object(bytes);
  auto used = fs::last_write_time(reds);
  cache->insert("blue", sha256(bytes), bytes);
  cache->find("blue", sha256(bytes));
  CHECK(fs::last_write_time(reds) == used);
  CHECK(keep_cache(root, 1u << 20).bytes == 2 * bytes.size());
}

TEST_CASE_FIXTURE(Fixture, "a tenant's name never becomes part of a path") {
  auto cache = open();
  auto bytes = image(100, 4);
  std::vector<std::string> tenants = {"../../escape", "/etc", "a/b", "shared", std::string(5000, 'x')};
  for (const std::string& tenant : tenants) {
    CHECK(cache->insert(tenant, sha256(bytes), bytes));
    CHECK(cache->find(tenant, sha256(bytes)));
  }
  CHECK_FALSE(cache->find("", sha256(bytes)));
  for (const auto& entry : fs::directory_iterator(directory.path())) CHECK(entry.path() == root);
}

TEST_CASE_FIXTURE(Fixture, "the least recently used images make room for new ones") {
  auto cache = open(30'000);
  auto first = image(10'000, 1), second = image(10'000, 2), third = image(10'000, 3), fourth = image(10'000, 4);
  for (auto* bytes : {&first, &second, &third}) cache->insert("", sha256(*bytes), *bytes);
  age(first, 300);
  age(second, 200);
  age(third, 100);
  CHECK(cache->find("", sha256(first)));  // used now
  cache->insert("", sha256(fourth), fourth);
  CHECK(keep_cache(root, 30'000).bytes <= 30'000);
  CHECK(cache->find("", sha256(first)));
  CHECK_FALSE(cache->find("", sha256(second)));
  CHECK(cache->find("", sha256(fourth)));
}

TEST_CASE_FIXTURE(Fixture, "a tenant that sends images without end makes room among its own, not among others'") {
  auto cache = open(100'000);
  std::vector<std::vector<std::byte>> of_others;
  for (int i = 0; i < 4; ++i) {
    of_others.push_back(image(10'000, 100 + i));
    const std::string tenant = "other " + std::to_string(i % 2);
    cache->insert(tenant, sha256(of_others.back()), of_others.back());
    age(of_others.back(), 1000);
  }
  for (int i = 0; i < 30; ++i) {
    auto bytes = image(10'000, 200 + i);
    cache->insert("flood", sha256(bytes), bytes);
    CHECK(keep_cache(root, 100'000).bytes <= 100'000);
  }
  for (int i = 0; i < 4; ++i) CHECK(cache->find("other " + std::to_string(i % 2), sha256(of_others[size_t(i)])));
}

TEST_CASE_FIXTURE(Fixture, "how long ago an image was used is known after a restart") {
  auto first = image(10'000, 1), second = image(10'000, 2), third = image(8'000, 3);
  for (auto* bytes : {&first, &second}) open()->insert("", sha256(*bytes), *bytes);
  age(first, 300);
  age(second, 200);
  CHECK(open()->find("", sha256(first)));
  open()->insert("", sha256(third), third);
  keep_cache(root, 25'000);
  CHECK(open()->find("", sha256(first)));
  CHECK_FALSE(open()->find("", sha256(second)));
}

TEST_CASE_FIXTURE(Fixture, "a cache within its bound is left as it is") {
  auto first = image(10'000, 1), second = image(10'000, 2);
  for (auto* bytes : {&first, &second}) open()->insert("", sha256(*bytes), *bytes);
  CacheContents left = keep_cache(root, 20'000);
  CHECK(left.bytes == 20'000);
  CHECK(left.images == 2);
}

TEST_CASE_FIXTURE(Fixture, "writing needs the tenant's own folder and nothing else") {
  auto cache = open();
  fs::path own = cache->prepare("red");
  // Another process has removed all other files, or holds them.
  fs::permissions(root / "tenants", fs::perms::owner_read | fs::perms::owner_exec);
  auto bytes = image(5000, 3);
  CHECK(cache->insert("red", sha256(bytes), bytes));
  CHECK(same(cache->find("red", sha256(bytes)), bytes));
  CHECK(object(bytes).parent_path() == own);
  fs::permissions(root / "tenants", fs::perms::owner_all);
}

TEST_CASE_FIXTURE(
    Fixture, "an image that was evicted and that another tenant brings back is not shown to those who once had it") {
  auto cache = open();
  auto first = image(8'000, 1), second = image(8'000, 2);
  cache->insert("red", sha256(first), first);
  age(first, 100);
  cache->insert("red", sha256(second), second);
  keep_cache(root, 10'000);
  CHECK_FALSE(fs::exists(object(first)));
  age(second, 50);
  cache->insert("blue", sha256(first), first);
  CHECK_FALSE(cache->find("red", sha256(first)));
  CHECK(cache->find("blue", sha256(first)));
}

TEST_CASE_FIXTURE(Fixture, "an image larger than the cache is refused") {
  auto cache = open(1000);
  auto bytes = image(1001, 1);
  CHECK_FALSE(cache->insert("", sha256(bytes), bytes));
  CHECK_FALSE(cache->insert("", Digest{}, {}));
  CHECK(keep_cache(root, 1000).images == 0);
}

TEST_CASE_FIXTURE(Fixture, "a file that was changed, cut or emptied is removed and not found") {
  auto cache = open();
  for (int damage = 0; damage < 3; ++damage) {
    auto bytes = image(10'000, 50 + damage);
    cache->insert("", sha256(bytes), bytes);
    if (damage == 0) {
      std::fstream file(object(bytes), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(5000);
      file.put(char(~std::to_integer<int>(bytes[5000])));
    } else {
      fs::resize_file(object(bytes), damage == 1 ? 9'999 : 0);
    }
    CHECK_FALSE(cache->find("", sha256(bytes)));
    CHECK(cache->insert("", sha256(bytes), bytes));
    CHECK(same(cache->find("", sha256(bytes)), bytes));
  }
}

TEST_CASE_FIXTURE(Fixture, "an image stays readable after it was evicted") {
  auto cache = open();
  auto first = image(8'000, 1), second = image(8'000, 2);
  cache->insert("", sha256(first), first);
  age(first, 100);
  auto found = cache->find("", sha256(first));
  age(first, 100);
  cache->insert("", sha256(second), second);
  keep_cache(root, 10'000);
  CHECK_FALSE(fs::exists(object(first)));
  CHECK(same(found, first));
}

TEST_CASE_FIXTURE(Fixture, "files and directories are the user's alone") {
  auto cache = open();
  auto bytes = image(100, 1);
  cache->insert("red", sha256(bytes), bytes);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat status {};
    REQUIRE(lstat(entry.path().c_str(), &status) == 0);
    CHECK((status.st_mode & 077) == 0);
  }
}

TEST_CASE_FIXTURE(Fixture, "a directory that others may write, or that is none, is refused with a reason") {
  fs::create_directory(root);
  fs::permissions(root, fs::perms::all);
  auto opened = ModuleCache::open({root});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().find(root.string()) != std::string::npos);
  fs::remove(root);
  std::ofstream(root.string()) << "a file";
  CHECK_FALSE(ModuleCache::open({root}));
  fs::remove(root);
  fs::create_directory_symlink(directory.path(), root);
  CHECK_FALSE(ModuleCache::open({root}));
}

TEST_CASE_FIXTURE(Fixture, "a file that a process left half written is removed when it is old") {
  fs::path own = open()->prepare("red");
  fs::path fresh = own / ".new-1.0", stale = own / ".new-2.0";
  std::ofstream(fresh.string()) << "x";
  std::ofstream(stale.string()) << "x";
  fs::last_write_time(stale, fs::file_time_type::clock::now() - std::chrono::hours(2));
  keep_cache(root, 1u << 20);
  CHECK(fs::exists(fresh));
  CHECK_FALSE(fs::exists(stale));
}

TEST_CASE_FIXTURE(Fixture,
                  "folders and links of workers that are gone are removed, those of running ones and of tenants stay") {
  open();
  pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  fs::path compiled = root / "compiled", tenant = compiled / std::string(64, 'a');
  fs::create_directory(compiled);
  fs::create_directory(tenant);
  std::string number = std::to_string(gone), parent = std::to_string(getppid());
  for (const std::string& process : {number, parent}) {
    fs::create_directory(compiled / ("of-worker-" + process));
    fs::create_symlink(tenant, compiled / ("worker-" + process));
  }
  keep_cache(root, 1u << 20);
  CHECK_FALSE(fs::exists(compiled / ("of-worker-" + number)));
  CHECK_FALSE(fs::is_symlink(compiled / ("worker-" + number)));
  CHECK(fs::exists(compiled / ("of-worker-" + parent)));
  CHECK(fs::is_symlink(compiled / ("worker-" + parent)));
  CHECK(fs::exists(tenant));
}

TEST_CASE_FIXTURE(Fixture, "a tenant's compiled code is bounded, and another's stays") {
  open();
  const fs::path compiled = root / "compiled", greedy = compiled / std::string(64, 'a'),
                 other = compiled / std::string(64, 'b');
  constexpr size_t kBytesMax = 1 << 20;
  auto write = [](const fs::path& file, size_t bytes) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << std::string(bytes, 'x');
  };
  write(other / "1/2/index", kBytesMax / 2);
  SUBCASE("more bytes than the driver would keep") {
    for (const char* name : {"1/2/a", "1/3/b", "c"}) write(greedy / name, kBytesMax / 2);
  }
  SUBCASE("folders in folders, more than anybody keeps open") {
    // Folder by folder: the path would be too long for one call.
    fs::create_directories(greedy);
    OwnedDescriptor at(::open(greedy.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int depth = 0; depth < 3000; ++depth) {
      REQUIRE(::mkdirat(at.get(), "d", 0700) == 0);
      at.reset(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      REQUIRE(at);
    }
  }
  SUBCASE("folders that cannot be read") {
    write(greedy / "d/e/f/g/h/file", 1);
    fs::permissions(greedy / "d/e", fs::perms::none);
    fs::permissions(greedy / "d", fs::perms::none);
  }
  keep_cache(root, 1u << 20, kBytesMax);
  CHECK(fs::exists(greedy));  // running workers write into it
  CHECK(fs::is_empty(greedy));
  CHECK(fs::exists(other / "1/2/index"));
}

TEST_CASE_FIXTURE(Fixture, "emptying a folder removes links, not their targets") {
  open();
  const fs::path greedy = root / "compiled" / std::string(64, 'a'), outside = directory.path() / "outside";
  fs::create_directories(outside);
  std::ofstream(outside / "kept") << "x";
  fs::create_directories(greedy / "1/2/3/4/5");
  fs::create_directory_symlink(outside, greedy / "link");
  fs::create_directory_symlink(outside, greedy / "1/2/link");
  keep_cache(root, 1u << 20);
  CHECK(fs::is_empty(greedy));
  CHECK(fs::exists(outside / "kept"));
}

TEST_CASE_FIXTURE(Fixture, "folders among a tenant's images are removed with what is in them, and the images stay") {
  auto cache = open();
  auto kept = image(1000, 1);
  cache->insert("red", sha256(kept), kept);
  const fs::path hidden = object(kept).parent_path() / "hidden";
  fs::create_directories(hidden / "deeper");
  std::ofstream(hidden / "deeper/file") << std::string(1 << 20, 'x');
  keep_cache(root, 1u << 20);
  CHECK_FALSE(fs::exists(hidden));
  CHECK(fs::exists(object(kept)));
}

TEST_CASE_FIXTURE(Fixture, "the keeper makes room by itself") {
  auto cache = open();
  auto first = image(8'000, 1), second = image(8'000, 2);
  cache->insert("red", sha256(first), first);
  age(first, 100);
  cache->insert("red", sha256(second), second);
  CacheKeeper keeper(root, 10'000);
  CHECK(test::becomes([&] { return !fs::exists(object(first)); }));
  CHECK(fs::exists(object(second)));
}

TEST_CASE_FIXTURE(Fixture, "several processes insert, find and evict at the same time and never see a wrong image") {
  constexpr int kProcesses = 4, kSteps = 300, kImages = 12;
  const unsigned seed = 99;
  INFO("seed ", seed);
  std::vector<std::vector<std::byte>> images;
  std::vector<Digest> digests;
  for (int i = 0; i < kImages; ++i) {
    images.push_back(image(1000 + 500 * size_t(i), seed + unsigned(i)));
    digests.push_back(sha256(images.back()));
  }
  open();
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto cache = ModuleCache::open({root, 20'000});
      if (!cache) _exit(2);
      std::mt19937 random(seed + 1000 + unsigned(process));
      for (int step = 0; step < kSteps; ++step) {
        size_t which = random() % kImages;
        if (random() % 2) (*cache)->insert("", digests[which], images[which]);
        if (random() % 4 == 0) keep_cache(root, 20'000);
        auto found = (*cache)->find("", digests[which]);
        if (found && !same(found, images[which])) _exit(3);
      }
      _exit(0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  auto cache = open(20'000);
  CHECK(keep_cache(root, 20'000).bytes <= 20'000);
  cache->insert("", digests[0], images[0]);
  CHECK(same(cache->find("", digests[0]), images[0]));
}
