// Keeping is the broker's side of its keeper (../keeper): it stores the objects that sessions need to continue under
// the next broker, and finds them again.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/ipc/event_channel.hpp"

namespace gpuwire::server {

struct KeepingSettings {
  // The folder of this server alone; created if missing.
  std::filesystem::path directory;
  // The path of gpuwire-keeper.
  std::string program;
  // The time that sessions stay without a broker.
  std::chrono::milliseconds grace{0};
  // The folder is removed with the last session.
  bool temporary = false;
};

// The store of entries. An entry that is stored before a worker gets its client exists once the worker has the client,
// whenever the broker dies.
class EntryStore {
 public:
  // Replaces the entry of this name.
  virtual void put(KeptEntry entry) = 0;
  // Replaces the text; without effect when there is no such entry.
  virtual void note(const std::string& name, std::string text) = 0;
  virtual void remove(const std::string& name) = 0;

 protected:
  ~EntryStore() = default;
};

// Keeping holds a copy of all stored entries, with descriptors of its own: a keeper that dies is restarted, and gets
// them again. The broker's thread only. The folder has: `lock`, held by the broker, with its process id; `key`, by
// which a broker authenticates itself to the keeper; `keeper`, the keeper's socket.
class Keeping final : public EntryStore {
 public:
  // Locks the folder, finds the keeper of an earlier broker and takes its entries, or starts a keeper. Blocks for the
  // keeper's answer. Errors: the folder is accessible to other users, or belongs to another server.
  static tl::expected<std::unique_ptr<Keeping>, std::string> open(boost::asio::io_context& io,
                                                                  KeepingSettings settings);
  ~Keeping();

  // Returns the entries of an earlier broker, once.
  std::vector<KeptEntry> take() { return std::move(found_); }
  void set_grace(std::chrono::milliseconds grace);

  void put(KeptEntry entry) override;
  void note(const std::string& name, std::string text) override;
  void remove(const std::string& name) override;
  // Removes all entries for which the keeper stays and whose names `is_one` accepts.
  void remove_all(bool (*is_one)(const std::string& name));

 private:
  Keeping(boost::asio::io_context& io, KeepingSettings settings);
  tl::expected<void, std::string> take_folder();
  tl::expected<void, std::string> take_lock();
  void clear_folder();
  bool find_keeper();
  std::string take_entries(int keeper);
  void forget_entries();
  // `await`: returns only when a next broker could find the keeper.
  tl::expected<void, std::string> start_keeper(bool await);
  void listen_to(OwnedDescriptor keeper);
  void start_again_later();
  void remember(const KeptEntry& entry);
  // A keeper that does not read counts as dead.
  void notify(ipc::Message message);
  void keeper_gone();

  boost::asio::io_context& io_;
  KeepingSettings settings_;
  OwnedDescriptor lock_;
  std::string key_;
  std::vector<KeptEntry> found_;
  std::unique_ptr<ipc::EventChannel> channel_;
  // A keeper that this process has started.
  pid_t child_ = -1;
  // By name: the stored entries.
  std::map<std::string, KeptEntry> entries_;
  // The entries among these for which the keeper stays without a broker.
  std::set<std::string> lasting_;
  boost::asio::steady_timer retry_;
  unsigned failures_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
