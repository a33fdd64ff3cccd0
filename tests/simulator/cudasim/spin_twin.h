// SPDX-License-Identifier: Apache-2.0
//
// spin_twin.h: the host twin of the kernel behind torch.cuda._sleep, which the
// simulated device brings along: PyTorch's own tests of streams and events
// keep a stream busy with it everywhere.
//
// It takes its cycles at the card's clock rate on the virtual clock, without
// keeping an engine busy: one thread spins. In async mode it stays the stream's
// first operation for a number of turns (steps or queries), so that a program
// that asks finds the stream busy and one that polls gets through.
//
// Thread-safety: takes the simulator's lock itself.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_SPIN_TWIN_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_SPIN_TWIN_H_

namespace cudasim {

inline constexpr char kSpinKernel[] =
    "at::cuda::(anonymous namespace)::spin_kernel";

// One argument: the cycles, a 64-bit integer.
void SpinTwin(void** arguments, const unsigned grid[3],
              const unsigned block[3]);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_SPIN_TWIN_H_
