// SPDX-License-Identifier: Apache-2.0
//
// raw_launches.h: launches that no operator shows, such as those of Triton or
// of kernels written by hand: a function of a loaded module, and arguments of
// which the image says the sizes (kernel_image.h). The kernel reads its
// pointers whether or not anybody made sure that the memory is there, so that
// is what is checked here.
//
// A pointer argument is a parameter of 8 bytes whose value lies in the arena,
// or in pinned host memory. Structures passed by value are not searched: their
// unused parts hold whatever was on the stack.
//
// A pointer has no size. What is claimed of it is the least that any use does:
// the byte it points to is read. So that byte must be mapped, granted and not
// freed, at the launch and when the kernel runs; its mapping may not go while
// the kernel may be running; and a write of that byte which nothing orders
// with the kernel is a race. What else the kernel touches is not known: a
// tensor of several handles whose other handles are gone passes.
//
// Thread-safety: RawLaunchNames has a lock of its own, the functions are called
// under the simulator's.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_RAW_LAUNCHES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_RAW_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/kernel_image.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {

// Which kernels without a twin may be launched with their pointers checked and
// nothing computed. None, unless CUDASIM_CHECK_RAW_LAUNCHES or the program
// says so: a launch that silently did nothing would leave wrong numbers.
class RawLaunchNames {
 public:
  // "all", or parts of names separated by semicolons; empty: none. Replaces
  // what was said before.
  void Set(const std::string& names);
  bool Covers(const std::string& kernel) const;

 private:
  mutable std::mutex mu_;
  bool all_ = false;
  std::vector<std::string> parts_;
};

// What is wrong with pinned memory on a card whose kernels cannot use it.
inline constexpr char kHostOutOfReach[] =
    "kernels of this device cannot use memory of the host";

struct PointerArgument {
  size_t number = 0;  // of the argument, from 0
  uint64_t address = 0;
};

std::vector<PointerArgument> PointerArguments(
    const Simulator& sim, const std::vector<KernelParameter>& parameters,
    void* const* arguments);

// False after a violation, and the stream's device is broken: `name` may not
// use one of them. `when`: "" at the launch, " (when it ran)".
bool PointersUsable(Simulator& sim, const std::string& name,
                    const Stream& stream,
                    const std::vector<PointerArgument>& pointers,
                    const char* when);

// The kernel may be using them from now on: an operation of the stream, which
// checks them again when it runs, unless a twin computes it at once (`twin`).
// In eager mode it has run already.
void SubmitPointers(Simulator& sim, const std::string& name, Stream* stream,
                    const std::vector<PointerArgument>& pointers, bool twin);

// The same as the accesses of a graph's node.
std::vector<cudasim_access> AccessesOf(
    const std::vector<PointerArgument>& pointers);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_RAW_LAUNCHES_H_
