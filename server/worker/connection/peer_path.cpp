#include "server/worker/connection/peer_path.hpp"

#include <algorithm>

namespace gpuwire::server {

PeerPath way_of(const transport::ConnectionEnd& seen, const transport::ConnectionEnd& said) {
  if (seen.address.empty()) return PeerPath::indirect;  // the connection has ended, so its peer is unknown
  if (seen.address != said.address) return PeerPath::indirect;
  if (seen.machine != said.machine)
    return PeerPath::indirect;  // a coincidence: both ends of a tunnel have the same address
  return seen.machine.empty() ? PeerPath::direct : PeerPath::same_machine;
}

uint32_t stay_ms(PeerPath way, link::Loss loss, const Graces& graces) {
  if (loss == link::Loss::broken || loss == link::Loss::given_up) return graces.resume_ms;
  if (way == PeerPath::same_machine) return 0;
  // A packet filter on the path may reset a connection, but never ends the stream in order.
  if (way == PeerPath::direct && loss == link::Loss::closed) return 0;
  return std::min(graces.resume_ms, graces.hang_up_ms);
}

}  // namespace gpuwire::server
