// The book of budgets on disk.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/budget/budget_book.hpp"

namespace gpuwire::server {

// The least age of the generation that replaces a broken file: by then the kernel has written it to the disk.
inline constexpr std::chrono::seconds kBudgetGenerationTime{60};

// Returns /var/lib/gpuwire/budgets for root, else gpuwire/budgets in the user's state folder.
std::filesystem::path default_budget_file();

// FILE, FILE.before (the generation before it), FILE.lock (held). One thread.
class BudgetFile {
 public:
  // Makes the folder, 0700, and takes the lock. The error: the lock is not available, or another server holds it.
  static tl::expected<BudgetFile, std::string> open(std::filesystem::path file);

  // Returns the file's content; the content of the previous generation, if the file is unusable; nothing, if neither
  // exists. If neither is usable, the function moves both aside, and the error gives the reason.
  tl::expected<std::optional<BudgetBook>, std::string> read();
  // Replaces the file atomically: a process that is killed in the middle leaves the old file. Does not wait for the
  // disk.
  tl::expected<void, std::string> write(const BudgetBook& book);
  const std::filesystem::path& path() const { return file_; }

 private:
  BudgetFile(std::filesystem::path file, OwnedDescriptor lock) : file_(std::move(file)), lock_(std::move(lock)) {}
  std::filesystem::path with(const char* ending) const { return file_.string() + ending; }

  std::filesystem::path file_;
  OwnedDescriptor lock_;
  std::chrono::steady_clock::time_point generation_ = std::chrono::steady_clock::now();
};

}  // namespace gpuwire::server
