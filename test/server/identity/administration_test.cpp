// The files that the commands of `gpuwire admin` leave in the folder.
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/identity/administration.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

// A folder with an identity.
struct Folder {
  gpuwire::test::TemporaryDirectory temporary;
  fs::path path = temporary.path() / "lab/identity";
  Folder() { REQUIRE(init_identity(path, {.hosts = {"gpu7", "127.0.0.1"}}, kNow)); }
};

unsigned mode_of(const fs::path& file) {
  struct stat facts {};
  return ::lstat(file.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0;
}

std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("files that init makes are for the server's user only") {
  ::umask(0);
  Folder folder;
  ::umask(022);
  CHECK(mode_of(folder.path) == 0700);
  for (const auto& entry : fs::directory_iterator(folder.path)) CHECK(mode_of(entry.path()) == 0600);
  auto facts = server_facts(folder.path).value();
  CHECK(facts.name == "gpuwire CA of gpu7");
  CHECK(facts.hosts == std::vector<std::string>{"gpu7", "127.0.0.1"});
}

TEST_CASE("init leaves an identity that is there alone") {
  Folder folder;
  std::string before = content(folder.path / "ca.pem");
  auto again = init_identity(folder.path, {.hosts = {"gpu7"}}, kNow);
  REQUIRE_FALSE(again);
  CHECK(again.error().find("ca.pem: there is an identity already") != std::string::npos);
  CHECK(content(folder.path / "ca.pem") == before);
}

TEST_CASE("init does not use a folder that others can enter") {
  gpuwire::test::TemporaryDirectory temporary;
  fs::path path = temporary.path() / "open";
  ::mkdir(path.c_str(), 0755);
  auto made = init_identity(path, {.hosts = {"gpu7"}}, kNow);
  REQUIRE_FALSE(made);
  CHECK(made.error().find("mode 0755") != std::string::npos);
}

TEST_CASE("a tenant's bundle holds key, certificate and authority, and is for its owner only") {
  Folder folder;
  fs::path out = folder.temporary.path() / "alice.pem";
  auto made = add_certificate(folder.path, "alice", 30, out, kNow).value();
  CHECK(mode_of(out) == 0600);
  CHECK(content(out) == made.text);
  CHECK(read_key(made.text));
  CHECK(tenant_of(read_certificate(made.text).value().get()).value() == "alice");
  CHECK(made.text.ends_with(content(folder.path / "ca.pem")));
  auto credentials = read_register(folder.path).value();
  const Credential* kept = credentials.find(CredentialKind::certificate, made.credential.id);
  REQUIRE(kept);
  CHECK(kept->tenant == "alice");
  CHECK(kept->expires == kNow + 24h * 30);
}

TEST_CASE("a token is written for its owner and kept only as a hash") {
  Folder folder;
  fs::path out = folder.temporary.path() / "bob.token";
  auto made = add_token(folder.path, "bob", 30, out, kNow).value();
  CHECK(mode_of(out) == 0600);
  std::string token = made.text.substr(made.text.find('\n') + 1);
  token.pop_back();
  CHECK(read_register(folder.path).value().find_token(token)->tenant == "bob");
  for (const auto& entry : fs::directory_iterator(folder.path))
    CHECK(content(entry.path()).find(token) == std::string::npos);
}

TEST_CASE("a job's token counts for its job's time, and no longer than until it is revoked") {
  Folder folder;
  auto made =
      add_job_token(folder.path, {.tenant = "bob", .job = "slurm/lab/17", .gpus = 2, .lifetime = std::chrono::hours(3)},
                    kNow)
          .value();
  CHECK(made.text.size() == kTokenBytes);
  CHECK(made.authority.starts_with("-----BEGIN CERTIFICATE-----"));
  Register credentials = read_register(folder.path).value();
  const Credential* kept = credentials.find_token(made.text);
  REQUIRE(kept);
  CHECK(kept->tenant == "bob");
  CHECK(kept->job == "slurm/lab/17");
  CHECK(kept->gpus == 2);
  CHECK(why_invalid(*kept, kNow + std::chrono::minutes(179)).empty());
  CHECK_FALSE(why_invalid(*kept, kNow + std::chrono::minutes(181)).empty());
  CHECK(revoke_job(folder.path, "slurm/lab/18", true, kNow).value().empty());
  CHECK(revoke_job(folder.path, "slurm/lab/17", true, kNow).value().size() == 1);
  CHECK_FALSE(why_invalid(*read_register(folder.path).value().find_token(made.text), kNow).empty());
  CHECK_FALSE(add_job_token(folder.path,
                            {.tenant = "bob", .job = "a job", .gpus = 1, .lifetime = std::chrono::hours(3)}, kNow));
  CHECK_FALSE(
      add_job_token(folder.path, {.tenant = "bob", .job = "17", .gpus = 0, .lifetime = std::chrono::hours(3)}, kNow));
  CHECK_FALSE(
      add_job_token(folder.path, {.tenant = "bob", .job = "17", .gpus = 1, .lifetime = std::chrono::seconds(1)}, kNow));
}

TEST_CASE("a register does not grow with every job that there ever was") {
  Folder folder;
  for (int i = 0; i < 5; ++i) {
    auto now = kNow + std::chrono::hours(4) * i;
    REQUIRE(add_job_token(
        folder.path, {.tenant = "bob", .job = std::to_string(i), .gpus = 1, .lifetime = std::chrono::hours(3)}, now));
    REQUIRE(revoke_job(folder.path, std::to_string(i), true, now + std::chrono::hours(2)));
    CHECK(read_register(folder.path).value().credentials().size() <= 1);
  }
}

TEST_CASE("a file that is there is not overwritten, and then there is no credential") {
  Folder folder;
  fs::path out = folder.temporary.path() / "alice.pem";
  std::ofstream(out) << "mine";
  CHECK_FALSE(add_certificate(folder.path, "alice", 30, out, kNow));
  CHECK(content(out) == "mine");
  CHECK(read_register(folder.path).value().credentials().empty());
}

TEST_CASE("revoking changes the register, and an unknown name is an error") {
  Folder folder;
  auto made = add_certificate(folder.path, "alice", 30, {}, kNow).value();
  CHECK(revoke_credentials(folder.path, "alice", true, kNow + 1h).value().size() == 1);
  CHECK(read_register(folder.path).value().find(CredentialKind::certificate, made.credential.id)->revoked == kNow + 1h);
  auto unknown = revoke_credentials(folder.path, "carol", false, kNow);
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().find("\"carol\"") != std::string::npos);
}

TEST_CASE("a renewed server has a new key, the same authority and the same names") {
  Folder folder;
  std::string key = content(folder.path / "server.key"), authority = content(folder.path / "ca.pem");
  auto facts = renew_server(folder.path, {}, false, 100, kNow + 24h).value();
  CHECK(facts.hosts == std::vector<std::string>{"gpu7", "127.0.0.1"});
  CHECK(facts.server_expires == kNow + 24h * 101);
  CHECK(content(folder.path / "server.key") != key);
  CHECK(content(folder.path / "ca.pem") == authority);
  std::vector<std::string> before = facts.hosts, added = before;
  added.push_back("gpu8");
  CHECK(renew_server(folder.path, {"gpu8", before.front()}, false, 100, kNow).value().hosts == added);
  CHECK(renew_server(folder.path, {}, true, 100, kNow).value().hosts == added);
  CHECK(renew_server(folder.path, {"gpu9"}, true, 100, kNow).value().hosts == std::vector<std::string>{"gpu9"});
}

TEST_CASE("a key that others could have read is refused, with what to do about it") {
  Folder folder;
  ::chmod((folder.path / "ca.key").c_str(), 0640);
  auto made = add_certificate(folder.path, "alice", 30, {}, kNow);
  REQUIRE_FALSE(made);
  CHECK(made.error() ==
        (folder.path / "ca.key").string() + ": others can access it (mode 0640); `chmod go= FILE` fixes that");
}

TEST_CASE("files that root writes into the folder are the server's user's, and credentials that it issues are not") {
  if (::geteuid() != 0) return;
  constexpr uid_t kServer = 4242, kStranger = 4243;
  gpuwire::test::TemporaryDirectory temporary;
  fs::path folder = temporary.path() / "identity", out = temporary.path() / "anna.pem";
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  REQUIRE(::chown(folder.c_str(), kServer, gid_t(-1)) == 0);
  REQUIRE(init_identity(folder, {.hosts = {"gpu7"}}, kNow));
  REQUIRE(add_certificate(folder, "anna", 1, out, kNow));
  auto owner_of = [](const fs::path& file) {
    struct stat facts {};
    return ::stat(file.c_str(), &facts) == 0 ? facts.st_uid : uid_t(-1);
  };
  for (const auto& entry : fs::directory_iterator(folder))
    CHECK_MESSAGE(owner_of(entry.path()) == kServer, entry.path().string());
  CHECK(owner_of(out) == 0);
  REQUIRE(::chown((folder / "ca.key").c_str(), kStranger, gid_t(-1)) == 0);
  CHECK_FALSE(add_certificate(folder, "bob", 1, temporary.path() / "bob.pem", kNow));
}

TEST_CASE("links, pipes and overlong files are not read") {
  gpuwire::test::TemporaryDirectory temporary;
  fs::path link = temporary.path() / "link", pipe = temporary.path() / "pipe", large = temporary.path() / "large";
  REQUIRE(create_private_file(large, std::string(100, 'x')));
  fs::create_symlink(large, link);
  ::mkfifo(pipe.c_str(), 0600);
  CHECK(read_private_file(large, 100).value().size() == 100);
  CHECK(read_private_file(large, 99).error() == large.string() + ": longer than 99 bytes");
  CHECK_FALSE(read_private_file(link, 100));
  CHECK(read_private_file(pipe, 100).error() == pipe.string() + ": no regular file");
  CHECK(read_private_file(temporary.path() / "none", 100).error() ==
        (temporary.path() / "none").string() + ": No such file or directory");
}

TEST_CASE("without an identity every command says so, and what makes one") {
  gpuwire::test::TemporaryDirectory temporary;
  for (const std::string& error :
       {add_certificate(temporary.path(), "alice", 1, {}, kNow).error(),
        add_token(temporary.path(), "alice", 1, {}, kNow).error(), server_facts(temporary.path()).error()}) {
    CHECK_MESSAGE(error.find("there is no identity in " + temporary.path().string()) != std::string::npos, error);
    CHECK_MESSAGE(error.find("init` makes one") != std::string::npos, error);
  }
}
