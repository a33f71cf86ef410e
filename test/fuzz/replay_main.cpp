// Runs the corpus through the fuzz function, then a number of random changes of it, or changes until the time is over.
// After a crash, or after SIGABRT ends a hang, the input is in a file.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/mutate.hpp"

namespace {

using Bytes = std::vector<uint8_t>;

const Bytes* g_current = nullptr;
std::string g_keep = "frame_fuzz_input";

// Uses only system calls, because other code may be affected by the fault.
void keep_input(int signal_number) {
  int file = open(g_keep.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (file >= 0 && g_current) [[maybe_unused]]
    ssize_t written = write(file, g_current->data(), g_current->size());
  static const char text[] = "crashed; the input is kept\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void try_input(const Bytes& input) {
  g_current = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void load(const std::filesystem::path& path, std::vector<Bytes>& corpus) {
  if (std::filesystem::is_directory(path)) {
    // In order, so that a seed means the same everywhere.
    std::set<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) inside.insert(entry.path());
    for (const auto& file : inside) load(file, corpus);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t changes = 0;
  uint64_t seed = 20251;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
    else if (word == "--changes" && i + 1 < argc) changes = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--seed" && i + 1 < argc) seed = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--keep" && i + 1 < argc) g_keep = argv[++i];
    else load(word, corpus);
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "usage: %s [--seconds N | --changes N] [--seed N] [--keep FILE] CORPUS...\n", argv[0]);
    return 2;
  }
  for (int fatal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) signal(fatal, keep_input);
  for (const Bytes& input : corpus) try_input(input);
  std::mt19937_64 random(seed);
  uint64_t tried = 0;
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (changes ? tried < changes : std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 64; ++i, ++tried)
      try_input(gpuwire::test::mutate(corpus[random() % corpus.size()], corpus[random() % corpus.size()], random));
  }
  std::printf("%zu inputs of the corpus and %llu changes of them, seed %llu\n", corpus.size(),
              static_cast<unsigned long long>(tried), static_cast<unsigned long long>(seed));
  if (g_frames_decoded) std::printf("%llu frames\n", static_cast<unsigned long long>(g_frames_decoded));
  return 0;
}
