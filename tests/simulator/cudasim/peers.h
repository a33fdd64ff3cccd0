// SPDX-License-Identifier: Apache-2.0
//
// peers.h: which device can reach which other device's memory, and which was
// allowed to. As on hardware, the first is a property of the machine (here:
// CUDASIM_PEERS), the second is one-directional and asked for by the program.
//
// What enabling changes: memory of cudaMalloc is usable by work of another
// device. Copies never need it, the driver stages them; memory mapped by
// cuMemMap follows cuMemSetAccess instead.
//
// Thread-safety: the links are constant; the rest under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_PEERS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_PEERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

class Peers {
 public:
  // `links`: "all", "none", or pairs such as "0-1,2-3" (either direction).
  Peers(int devices, const std::string& links);

  // False if the text is not of that form or names other devices.
  static bool Parse(int devices, const std::string& links,
                    std::vector<uint32_t>* reachable);

  // Can `from` reach the memory of `to`? A device is no peer of itself.
  bool Can(int from, int to) const { return (reachable_[from] >> to & 1) != 0; }
  bool IsEnabled(int from, int to) const {
    return (enabled_[from] >> to & 1) != 0;
  }
  // kInvalidDevice: itself; kPeerAccessUnsupported: no link;
  // kPeerAccessAlreadyEnabled.
  Status Enable(int from, int to);
  // What cudaDeviceGetP2PAttribute answers; kInvalidDevice for devices that
  // are none or the same.
  Status Attribute(int attribute, int from, int to, int* value) const;
  // kPeerAccessNotEnabled.
  Status Disable(int from, int to);
  void Clear();

 private:
  std::vector<uint32_t> reachable_;  // by device, one bit per other device
  std::vector<uint32_t> enabled_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_PEERS_H_
