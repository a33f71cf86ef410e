#include "server/worker/connection/peer_path.hpp"

#include <algorithm>

namespace gpuwire::server {

PeerPath way_of(const transport::ConnectionEnd& seen, const transport::ConnectionEnd& said) {
  if (seen.address.empty()) return PeerPath::indirect;  // it is gone already, so nobody can say whose it was
  if (seen.address != said.address) return PeerPath::indirect;
  if (seen.machine != said.machine)
    return PeerPath::indirect;  // by chance: the near end of a tunnel has the number that the far one has
  return seen.machine.empty() ? PeerPath::direct : PeerPath::same_machine;
}

uint32_t stay_ms(PeerPath way, link::Loss loss, const Graces& graces) {
  if (loss == link::Loss::broken || loss == link::Loss::given_up) return graces.resume_ms;
  if (way == PeerPath::same_machine) return 0;
  // A packet filter between may reset connections; none makes the end of a stream.
  if (way == PeerPath::direct && loss == link::Loss::closed) return 0;
  return std::min(graces.resume_ms, graces.hang_up_ms);
}

}  // namespace gpuwire::server
