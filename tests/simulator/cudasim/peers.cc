// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/peers.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace cudasim {

Peers::Peers(int devices, const std::string& links) : enabled_(devices, 0) {
  Parse(devices, links, &reachable_);
}

bool Peers::Parse(int devices, const std::string& links,
                  std::vector<uint32_t>* reachable) {
  reachable->assign(devices, 0);
  if (links == "none") return true;
  if (links == "all") {
    for (int device = 0; device < devices; ++device) {
      (*reachable)[device] =
          ((uint32_t{1} << devices) - 1) & ~(uint32_t{1} << device);
    }
    return true;
  }
  std::istringstream parts(links);
  for (std::string part; std::getline(parts, part, ',');) {
    int one = -1;
    int other = -1;
    int end = 0;
    if (std::sscanf(part.c_str(), "%d-%d%n", &one, &other, &end) != 2 ||
        end != static_cast<int>(part.size()) || one < 0 || other < 0 ||
        one >= devices || other >= devices || one == other) {
      return false;
    }
    (*reachable)[one] |= uint32_t{1} << other;
    (*reachable)[other] |= uint32_t{1} << one;
  }
  return !links.empty() && links.back() != ',';
}

Status Peers::Enable(int from, int to) {
  if (from == to) return kInvalidDevice;
  if (!Can(from, to)) return kPeerAccessUnsupported;
  if (IsEnabled(from, to)) return kPeerAccessAlreadyEnabled;
  enabled_[from] |= uint32_t{1} << to;
  return kOk;
}

Status Peers::Disable(int from, int to) {
  if (!IsEnabled(from, to)) return kPeerAccessNotEnabled;
  enabled_[from] &= ~(uint32_t{1} << to);
  return kOk;
}

Status Peers::Attribute(int attribute, int from, int to, int* value) const {
  const int devices = static_cast<int>(reachable_.size());
  if (value == nullptr || attribute < 1 || attribute > 5) return kInvalidValue;
  if (from < 0 || to < 0 || from >= devices || to >= devices || from == to) {
    return kInvalidDevice;
  }
  // 1: performance rank (0 is the best), 2: access, 3: native atomics,
  // 4: arrays, 5: some atomics only. One kind of link, so all of it or none.
  *value = attribute >= 2 && attribute <= 4 && Can(from, to) ? 1 : 0;
  return kOk;
}

void Peers::Clear() { std::fill(enabled_.begin(), enabled_.end(), 0); }

}  // namespace cudasim
