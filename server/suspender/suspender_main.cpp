// gpuwire-suspender: moves workers' device memory to the host and back. Started by the broker, which names the
// processes.
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include <poll.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/confinement/front_process.hpp"
#include "server/confinement/process_rights.hpp"
#include "server/driver/library/driver_library.hpp"
#include "server/driver_table.hpp"
#include "server/ipc/channel.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/suspender/confinement.hpp"
#include "server/suspender/process_move.hpp"

namespace gpuwire::server {
namespace {

struct SuspenderOptions {
  DriverOptions driver;
  std::string confinement = "enforce";
  bool keeps_rights = false;
};

ipc::Moved carry_out(const DriverTable& driver, const ipc::Move& order) {
  auto alive = [&order] {
    pollfd ended{order.process.get(), POLLIN, 0};
    return order.process && ::poll(&ended, 1, 0) == 0;
  };
  ProcessMove move(driver, pid_t(order.process_id), alive);
  MoveOutcome outcome = order.resume ? move.to_device() : move.to_host();
  return {order.order, outcome.result, std::move(outcome.why)};
}

// Empty: the suspender is ready, and `driver` is open.
std::string open(const SuspenderOptions& options, std::optional<DriverLibrary>& driver) {
  const bool confined = options.confinement != "off";
  if (confined) confine_suspender(options.keeps_rights);
  auto opened = DriverLibrary::open(options.driver);
  if (!opened) return opened.error();
  driver.emplace(std::move(*opened));
  if (std::string why = why_no_moves(driver->table()); !why.empty()) return why;
  if (confined) {
    auto calls = options.confinement == "log" ? confine_system_calls(ProcessKind::suspender, Violation::log)
                                              : limit_system_calls(ProcessKind::suspender);
    if (!calls) return "it could not be confined: " + calls.error();
  }
  return {};
}

int run(const SuspenderOptions& options) {
  ipc::Channel broker(OwnedDescriptor(ipc::kDescriptor), ipc::Speaker::broker, 8);
  std::optional<DriverLibrary> driver;
  const std::string why = open(options, driver);
  broker.send(ipc::SuspenderReady{why});
  while (auto order = broker.await()) {
    auto* move = std::get_if<ipc::Move>(&*order);
    if (!move) continue;
    if (why.empty()) broker.send(carry_out(driver->table(), *move));
    else broker.send(ipc::Moved{move->order, ipc::MoveResult::refused, why});
  }
  return 0;
}

std::string default_software_library() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() /
         "server/libgpuwire_software_cuda.so";
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  SuspenderOptions options;
  options.driver.software_library = default_software_library();
  options.driver.contexts = false;
  gpuwire::CommandLine app(part_of_server("Moves idle sessions' device memory to the host and back."),
                           "gpuwire suspender");
  app.group_of_options("");  // nobody types them
  std::string device = "auto";
  app.add_option("--device", device).one_of({"auto", "cuda", "software"});
  app.add_option("--software-library", options.driver.software_library);
  app.add_option("--confinement", options.confinement).one_of({"enforce", "log", "off"});
  app.add_flag("--keep-rights", options.keeps_rights);
  app.group_of_options("Options");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = started_by_hand("suspender")) return *code;
  options.driver.device = device == "cuda"       ? DeviceChoice::cuda
                          : device == "software" ? DeviceChoice::software
                                                 : DeviceChoice::automatic;
  return run(options);
}
