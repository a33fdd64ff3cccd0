// SPDX-License-Identifier: Apache-2.0
//
// call_cost.h: what a CUDA call costs its caller. Two costs that have nothing
// to do with each other: virtual nanoseconds on the card's clock
// (virtual_clock.h), and nanoseconds of real CPU that are burned on request
// (CUDASIM_CALL_NS, or a profile's burn_calls_ns), so that a CPU benchmark does
// not find CUDA for free.
//
// Thread-safety: any thread, no lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CALL_COST_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CALL_COST_H_

#include <cstdint>

namespace cudasim {

class ApiFunction;
struct Card;
class VirtualClock;

// Charges one call. Nothing happens on the generic device.
void ChargeCall(ApiFunction& function, const Card& card, VirtualClock* clock);

// Keeps the processor busy for that long: a counted loop, calibrated at its
// first use, so that what else runs on the machine does not shorten it.
void Burn(int64_t ns);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CALL_COST_H_
