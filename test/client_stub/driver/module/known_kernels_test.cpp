// Kernels that earlier programs used: what is kept of them, and how they are asked for.
#include "client_stub/driver/module/known_kernels.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "client_stub/driver/module/module_state.hpp"
#include "test/client_stub/driver/memory/fixture.hpp"
#include "test/client_stub/driver/module/look_ahead_user.hpp"

namespace gpuwire::client {
namespace {

using test::DeviceProcess;
using test::ordinal;
using wire::SessionOrdinal;
using Names = std::vector<std::string>;

constexpr const char* kPtx = ".version 7.0\n.target sm_75\n";

struct User : test::LookAheadUser {
  User() : LookAheadUser("kernels") {}
};

// A program of the user's, with a library of any kernels but "gone".
struct Program : DeviceProcess {
  explicit Program(const char* look_ahead = "on") : DeviceProcess(1, "0", look_ahead) {
    session->answer(ordinal(SessionOrdinal::module_load),
                    [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleLoadReply>(); });
    session->serve(ordinal(SessionOrdinal::module_function),
                   [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
                     auto facts = reply.initRoot<schema::FunctionFacts>();
                     frame.read<schema::ModuleFunction>([&](auto question) {
                       if (question.getName() == "gone") facts.setResult(CUDA_ERROR_NOT_FOUND);
                       facts.initParameterOffsets(1);
                       facts.initParameterSizes(1).set(0, uint32_t(question.getName().size()));
                     });
                   });
    REQUIRE(hand::cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  }

  CUresult use(const char* name) {
    CUkernel kernel = nullptr;
    CUresult result = hand::cuLibraryGetKernel(&kernel, library, name);
    if (result) return result;
    size_t offset = 0, bytes = 0;
    CHECK(hand::cuKernelGetParamInfo(kernel, 0, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(bytes == std::string(name).size());
    return result;
  }
  size_t asked() const { return session->count(ordinal(SessionOrdinal::module_function)); }

  CUlibrary library = nullptr;
};

KnownKernels of_image(const User& user, size_t number = 0) {
  ProgramImage::Digest digest{};
  std::memcpy(digest.data(), &number, sizeof number);
  return {user.folder, digest};
}

Names ahead(const KnownKernels& known) { return {known.ahead().begin(), known.ahead().end()}; }

}  // namespace

TEST_CASE("Kernels that an earlier program used are asked for together with the first one that is used") {
  User user;
  {
    Program program;
    for (const char* name : {"a", "longer", "b", "a"}) CHECK(program.use(name) == CUDA_SUCCESS);
    CHECK(program.asked() == 3);
    CHECK(program.session->in_flight_max() == 2);  // the library's loading and the first
  }
  CHECK(user.text() == "a\nlonger\nb\n");
  {
    Program program;
    CHECK(program.asked() == 0);
    CHECK(program.use("longer") == CUDA_SUCCESS);
    CHECK(program.asked() == 3);
    CHECK(program.session->in_flight_max() == 4);
    const size_t before = program.session->total();
    for (const char* name : {"a", "b", "longer"}) CHECK(program.use(name) == CUDA_SUCCESS);
    CHECK(program.session->total() == before);
    CHECK(program.use("new") == CUDA_SUCCESS);
    CHECK(program.asked() == 4);
  }
  CHECK(user.text() == "a\nlonger\nb\nnew\n");
}

TEST_CASE("A module's functions are asked for ahead, too, when the first is asked for") {
  User user;
  for (size_t asked_at_once : {1, 2}) {
    Program program;
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    REQUIRE(hand::cuModuleLoadData(&module, kPtx) == CUDA_SUCCESS);
    CHECK(program.asked() == 0);
    REQUIRE(hand::cuModuleGetFunction(&function, module, "one") == CUDA_SUCCESS);
    CHECK(program.asked() == asked_at_once);
    REQUIRE(hand::cuModuleGetFunction(&function, module, "two") == CUDA_SUCCESS);
    CHECK(program.asked() == 2);
    CHECK(hand::cuModuleUnload(module) == CUDA_SUCCESS);
    CHECK(hand::cuFuncGetModule(&module, function) == CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_CASE("A kernel that is there no more, or a line that is none, costs nobody anything") {
  User user;
  {
    Program program;
    CHECK(program.use("a") == CUDA_SUCCESS);
    CHECK(program.use("b") == CUDA_SUCCESS);
  }
  std::ofstream(user.file()) << std::string("gone\n\na\na\nwith\0zero\nhalf", 24);
  size_t handles_before = 0, handles_now = 0;
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { ++handles_before; });
  Program program;
  CHECK(program.use("b") == CUDA_SUCCESS);
  CHECK(program.asked() == 3);  // b, gone, a
  CHECK(program.use("gone") == CUDA_ERROR_NOT_FOUND);
  CHECK(program.asked() == 4);
  CHECK(program.use("a") == CUDA_SUCCESS);
  CHECK(program.asked() == 4);
  handles().for_each(wire::HandleKind::kernel, [&](uint64_t, void*) { ++handles_now; });
  CHECK(handles_now == handles_before + 2);
}

TEST_CASE("An image that the server has to be sent first is asked about again, with all that was asked ahead") {
  User user;
  {
    Program program;
    for (const char* name : {"a", "b", "c"}) CHECK(program.use(name) == CUDA_SUCCESS);
  }
  Program program;
  program.session->answer(ordinal(SessionOrdinal::module_offer),
                          [](capnp::MessageBuilder& reply) { reply.initRoot<schema::ModuleOfferReply>(); });
  program.session->answer(ordinal(SessionOrdinal::module_load), [&](capnp::MessageBuilder& reply) {
    auto load = reply.initRoot<schema::ModuleLoadReply>();
    if (program.session->count(ordinal(SessionOrdinal::module_data)) > 0) return;
    load.setResult(CUDA_ERROR_NOT_FOUND);
    load.setMissing(true);
  });
  CHECK(program.use("c") == CUDA_SUCCESS);
  CHECK(program.asked() == 6);
  CHECK(program.use("a") == CUDA_SUCCESS);
  CHECK(program.asked() == 6);
}

TEST_CASE("Nothing is kept where the user wants nothing kept") {
  User user;
  const char* look_ahead = "on";
  SUBCASE("no looking ahead") { look_ahead = "off"; }
  SUBCASE("no key") { setenv("GPUWIRE_CACHE_KEY_FILE", "none", 1); }
  Program program(look_ahead);
  for (const char* name : {"a", "b", "c"}) CHECK(program.use(name) == CUDA_SUCCESS);
  CHECK(user.files().empty());
}

TEST_CASE("All kernels of a library are asked for in rounds of a bounded number, and are not kept as used") {
  User user;
  Program program;
  constexpr size_t kKernels = 2 * kKernelsAheadMax + 3;
  program.session->answer(ordinal(SessionOrdinal::module_functions), [](capnp::MessageBuilder& reply) {
    auto names = reply.initRoot<schema::ModuleFunctions>().initNames(kKernels);
    for (unsigned i = 0; i < kKernels; ++i) names.set(i, "k" + std::to_string(i));
  });
  CHECK(program.use("k7") == CUDA_SUCCESS);
  std::vector<CUkernel> kernels(kKernels);
  REQUIRE(hand::cuLibraryEnumerateKernels(kernels.data(), unsigned(kernels.size()), program.library) == CUDA_SUCCESS);
  CHECK(program.asked() == kKernels);
  CHECK(program.session->in_flight_max() == kKernelsAheadMax);
  CHECK(std::set<CUkernel>(kernels.begin(), kernels.end()).size() == kKernels);
  const char* name = nullptr;
  CHECK(hand::cuKernelGetName(&name, kernels[200]) == CUDA_SUCCESS);
  CHECK(std::string(name) == "k200");
  CHECK(user.files().empty());
}

TEST_CASE("An image of which one kernel is used needs no file, and each name is written once") {
  User user;
  of_image(user).used("only");
  CHECK(user.files().empty());
  KnownKernels known = of_image(user);
  for (const char* name : {"first", "second", "third"}) known.used(name);
  known.used("two\nlines");
  known.used("");
  CHECK(ahead(of_image(user)) == Names{"first", "second", "third"});
  KnownKernels later = of_image(user);
  later.used("second");
  later.used("fourth");
  CHECK(ahead(of_image(user)) == Names{"first", "second", "third", "fourth"});
  struct stat status {};
  REQUIRE(::stat(user.file().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("So many kernels are asked for ahead, so large is a file, and so many files there are") {
  User user;
  KnownKernels known = of_image(user);
  for (size_t i = 0; i < 2 * kKernelsAheadMax; ++i) known.used("k" + std::to_string(i));
  CHECK(of_image(user).ahead().size() == kKernelsAheadMax);
  const std::string long_name(wire::kNameBytesMax / 2, 'n');
  known.used(long_name);
  known.used(long_name + "m");
  CHECK(std::filesystem::file_size(user.file()) <= kImageLinesBytesMax);
  std::ofstream(user.file(), std::ios::app) << std::string(kImageLinesBytesMax, 'x') << '\n';
  CHECK(of_image(user).ahead().empty());
  std::ofstream(user.folder / "of somebody else") << "text";
  for (size_t i = 0; i < kImagesWithLinesMax + 10; ++i) {
    KnownKernels other = of_image(user, i);
    other.used("a");
    other.used("b");
  }
  CHECK(user.files().size() == kImagesWithLinesMax + 1);
  CHECK(std::filesystem::exists(user.folder / "of somebody else"));
}

TEST_CASE("A file that others may write to, a link or a pipe is not read") {
  User user;
  KnownKernels known = of_image(user);
  known.used("a");
  known.used("b");
  const std::filesystem::path file = user.file();
  REQUIRE(of_image(user).ahead().size() == 2);
  SUBCASE("others may write") { REQUIRE(::chmod(file.c_str(), 0620) == 0); }
  SUBCASE("a link") {
    std::filesystem::rename(file, user.folder / "elsewhere");
    std::filesystem::create_symlink(user.folder / "elsewhere", file);
  }
  SUBCASE("a pipe") {
    std::filesystem::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  }
  KnownKernels again = of_image(user);
  CHECK(again.ahead().empty());
  again.used("c");
  again.used("d");
  CHECK(of_image(user).ahead().empty());
}

}  // namespace gpuwire::client
