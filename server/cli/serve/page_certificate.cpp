#include "server/cli/serve/page_certificate.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/identity/identity_directory.hpp"
#include "server/identity/page_context.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

tl::expected<OwnedDescriptor, std::string> open_public_file(const fs::path& file) {
  // O_NONBLOCK: the file may be a pipe without a writer.
  OwnedDescriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (!in || ::fstat(in.get(), &facts) != 0)
    return tl::unexpected(fmt::format("{}: {}", file.string(), std::strerror(errno)));
  if (!S_ISREG(facts.st_mode)) return tl::unexpected(fmt::format("{}: no regular file", file.string()));
  return in;
}

// Tools that renew certificates replace a link to the present file.
tl::expected<OwnedDescriptor, std::string> open_secret_file(const fs::path& file) {
  std::error_code error;
  const fs::path target = fs::canonical(file, error);
  if (error) return tl::unexpected(fmt::format("{}: {}", file.string(), error.message()));
  return open_private_file(target).map([](int descriptor) { return OwnedDescriptor(descriptor); });
}

}  // namespace

PageFiles page_files(const Configuration& configuration) {
  const fs::path& identity = configuration.tls.directory;
  return {configuration.web_certificate, configuration.web_key,
          identity.empty() ? fs::path() : identity / kAuthorityCertificateFile};
}

tl::expected<OpenPageFiles, std::string> open_page_files(const PageFiles& files) {
  OpenPageFiles opened;
  PageTexts texts;
  auto add = [&](const char* key, const fs::path& file, tl::expected<OwnedDescriptor, std::string> descriptor,
                 std::string& text) -> std::string {
    if (!descriptor) return fmt::format("{}: {}", key, descriptor.error());
    auto read = read_descriptor(descriptor->get(), file.string(), kPemBytesMax);
    if (!read) return fmt::format("{}: {}", key, read.error());
    text = std::move(*read);
    opened.push_back(std::move(*descriptor));
    return {};
  };
  std::string wrong = add("web_certificate", files.certificate, open_public_file(files.certificate), texts.certificate);
  if (wrong.empty()) wrong = add("web_key", files.key, open_secret_file(files.key), texts.key);
  if (wrong.empty() && !files.authority.empty())
    wrong = add("[tls]", files.authority, open_secret_file(files.authority), texts.authority);
  if (wrong.empty()) {
    auto usable = make_page_context(texts, std::chrono::system_clock::now());
    if (!usable) wrong = usable.error();
  }
  OPENSSL_cleanse(texts.key.data(), texts.key.size());
  if (!wrong.empty()) return tl::unexpected(wrong);
  return opened;
}

PageCertificate::PageCertificate(boost::asio::io_context& io, PageFiles files, std::function<void()> renewed)
    : files_(std::move(files)), renewed_(std::move(renewed)), changes_(io) {}

tl::expected<std::unique_ptr<PageCertificate>, std::string> PageCertificate::open(boost::asio::io_context& io,
                                                                                  PageFiles files,
                                                                                  std::function<void()> renewed) {
  std::unique_ptr<PageCertificate> made(new PageCertificate(io, std::move(files), std::move(renewed)));
  // Watching begins before reading: a change between the two is found.
  made->watch();
  made->read_ = made->stamps();
  auto opened = open_page_files(made->files_);
  if (!opened) return tl::unexpected(opened.error());
  made->open_ = std::move(*opened);
  return made;
}

PageCertificate::Stamps PageCertificate::stamps() const {
  Stamps stamps;
  size_t next = 0;
  for (const fs::path* file : {&files_.certificate, &files_.key, &files_.authority}) {
    Stamp& stamp = stamps[next++];
    struct stat facts {};
    if (file->empty() || ::stat(file->c_str(), &facts) != 0) continue;
    stamp = {facts.st_dev, facts.st_ino, int64_t(facts.st_ctim.tv_sec) * 1'000'000'000 + facts.st_ctim.tv_nsec};
  }
  return stamps;
}

// The folders are watched, because the files are replaced by others of their names.
void PageCertificate::watch() {
  OwnedDescriptor changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!changes) return;
  for (const fs::path* file : {&files_.certificate, &files_.key, &files_.authority}) {
    if (file->empty()) continue;
    ::inotify_add_watch(changes.get(), file->parent_path().c_str(),
                        IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE | IN_DELETE | IN_ATTRIB);
  }
  changes_.assign(changes.release());
  listen();
}

void PageCertificate::listen() {
  changes_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (error) return;
                        char discarded[4096];
                        while (::read(changes_.native_handle(), discarded, sizeof discarded) > 0) {}
                        refresh();
                        listen();
                      }));
}

void PageCertificate::refresh() {
  const Stamps now = stamps();
  if (now == read_) return;
  read_ = now;
  auto opened = open_page_files(files_);
  if (!opened) {
    spdlog::error("{}; the web page goes on with the certificate that it had", opened.error());
    return;
  }
  open_ = std::move(*opened);
  renewed_();
}

}  // namespace gpuwire::server
