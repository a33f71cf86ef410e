#include "server/worker/connection/client_way.hpp"

#include <algorithm>

namespace gpuwire::server {

ClientWay way_of(const transport::ConnectionEnd& seen, const transport::ConnectionEnd& said) {
  if (seen.address.empty()) return ClientWay::indirect;  // it is gone already, so nobody can say whose it was
  if (seen.address != said.address) return ClientWay::indirect;
  if (seen.machine != said.machine)
    return ClientWay::indirect;  // by chance: the near end of a tunnel has the number that the far one has
  return seen.machine.empty() ? ClientWay::direct : ClientWay::same_machine;
}

uint32_t stay_ms(ClientWay way, link::Loss loss, const Graces& graces) {
  if (loss == link::Loss::broken || loss == link::Loss::given_up) return graces.resume_ms;
  if (way == ClientWay::same_machine) return 0;
  // A packet filter between may reset connections; none makes the end of a stream.
  if (way == ClientWay::direct && loss == link::Loss::closed) return 0;
  return std::min(graces.resume_ms, graces.hang_up_ms);
}

}  // namespace gpuwire::server
