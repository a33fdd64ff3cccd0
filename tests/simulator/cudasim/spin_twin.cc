// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/spin_twin.h"

#include <algorithm>
#include <cstdint>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

// A turn for each millisecond; a program that polls does not mind a hundred.
constexpr double kTurnNs = 1e6;
constexpr long kMostTurns = 100;

}  // namespace

void SpinTwin(void** arguments, const unsigned*, const unsigned*) {
  const int64_t cycles = *static_cast<const int64_t*>(arguments[0]);
  Simulator& sim = Simulator::Get();
  ThreadState& thread = ThisThread();
  Lock lock(sim.mu);
  Stream* const stream = thread.launching;
  const Card& card = CardOf(stream->device);
  const double ns =
      static_cast<double>(std::max<int64_t>(cycles, 0)) * 1e6 / card.clock_khz;
  if (card.modelled) sim.clock.Spin(card, stream, ns);
  thread.costed = true;
  if (!sim.async.load()) return;
  sim.streams.Submit(stream, nullptr);
  const double turns = std::min<double>(ns / kTurnNs, kMostTurns);
  sim.streams.Delay(stream, std::max(1L, static_cast<long>(turns)));
}

}  // namespace cudasim
