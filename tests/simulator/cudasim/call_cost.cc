// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/call_cost.h"

#include <time.h>

#include <algorithm>
#include <string>

#include "tests/simulator/cudasim/cards.h"
#include "tests/simulator/cudasim/faults.h"
#include "tests/simulator/cudasim/virtual_clock.h"

namespace cudasim {
namespace {

void Spin(uint64_t rounds) {
  for (uint64_t i = 0; i < rounds; ++i) asm volatile("" : "+r"(i));
}

int64_t ThreadCpuNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// The fastest of several: an interrupted one counted too few rounds.
double Calibrate() {
  constexpr uint64_t kRounds = 200000;
  int64_t best = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const int64_t start = ThreadCpuNs();
    Spin(kRounds);
    best = std::min(best, ThreadCpuNs() - start);
  }
  return static_cast<double>(kRounds) /
         static_cast<double>(std::max<int64_t>(best, 1));
}

double CostOf(const std::map<std::string, double>& costs, double otherwise,
              const char* function) {
  if (costs.empty()) return otherwise;
  auto found = costs.find(function);
  return found == costs.end() ? otherwise : found->second;
}

}  // namespace

void Burn(int64_t ns) {
  if (ns <= 0) return;
  static const double rounds_per_ns = Calibrate();
  Spin(static_cast<uint64_t>(rounds_per_ns * static_cast<double>(ns)));
}

void ChargeCall(ApiFunction& function, const Card& card, VirtualClock* clock) {
  const ApiFunction::Costs& costs = function.CostsFor(card, [&] {
    return ApiFunction::Costs{
        &card,
        static_cast<int64_t>(
            card.modelled ? CostOf(card.calls_ns, card.call_ns, function.name())
                          : 0),
        static_cast<int64_t>(
            CostOf(card.burn_calls_ns, card.burn_call_ns, function.name()))};
  });
  clock->Spend(costs.virtual_ns);
  Burn(costs.burn_ns);
}

}  // namespace cudasim
