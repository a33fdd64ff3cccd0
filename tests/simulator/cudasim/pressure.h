// SPDX-License-Identifier: Apache-2.0
//
// pressure.h: what the machine around the device does to the program: another
// process takes device memory and gives it back, copies get slower, a copy is
// stuck, the host cannot pin (more) memory, the driver has none for page
// tables or code. Planned by the control API or the environment, now or from a
// chosen call on; like planned failures (faults.h), but nothing fails by
// itself: there is less to be had.
//
// Thread-safety: `due` is read without a lock at every call, everything else
// is called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRESSURE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRESSURE_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/extents.h"
#include "tests/simulator/cudasim/host_memory.h"

namespace cudasim {

class ApiFunction;

class Pressure {
 public:
  // Another process holds `bytes` of the device's memory from now on; what is
  // in use stays with the program, so it may get less than it wants. Returns
  // what it holds.
  static uint64_t Take(DeviceMemory* memory, uint64_t bytes);

  // The same at the nth call from now of `function`.
  void PlanTake(int device, uint64_t bytes, ApiFunction* function, long nth);
  // True if something may be due: Apply() has to look.
  bool IsPlanned() const { return planned_.load(std::memory_order_relaxed); }
  // Called with every call while something is planned.
  void Apply(const ApiFunction& function, Extents* extents);

  // The nth copy from now (1: the next) takes `steps` turns of its stream
  // before it runs: steps and queries each use one up. Async mode only.
  void StickCopy(long nth, long steps) {
    stuck_nth_ = nth;
    stuck_steps_ = steps;
  }
  // Of the copy that is being submitted: 0 for most.
  long TakeSteps();

  // How much the host can pin: allocations, registered ranges and handles
  // located on the host together.
  void LimitPinned(uint64_t bytes) { pinned_limit_ = bytes; }
  bool CanPin(uint64_t bytes, const HostMemory& host,
              const Extents& extents) const;

  // Granting access to a device takes memory of it for page tables: none is
  // granted while less than this is free there.
  void KeepForPageTables(uint64_t bytes) { page_tables_ = bytes; }
  bool HasPageTables(const DeviceMemory& memory) const {
    return memory.Free() >= page_tables_;
  }

  // The same of code, at a kernel's first launch.
  void KeepForCode(uint64_t bytes) { code_ = bytes; }
  bool HasRoomForCode(const DeviceMemory& memory) const {
    return memory.Free() >= code_;
  }

  void Clear();

  // "device:bytes" or "device:bytes:function:nth", separated by ';'. An empty
  // string, or what is wrong.
  std::string TakeFromText(const std::string& text, Extents* extents);

 private:
  struct Plan {
    int device;
    uint64_t bytes;
    const ApiFunction* function;
    long call;
  };
  std::vector<Plan> plans_;
  std::atomic<bool> planned_{false};
  long stuck_nth_ = 0;
  long stuck_steps_ = 0;
  uint64_t pinned_limit_ = std::numeric_limits<uint64_t>::max();
  uint64_t page_tables_ = 0;
  uint64_t code_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_PRESSURE_H_
