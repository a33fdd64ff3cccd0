// SPDX-License-Identifier: Apache-2.0
//
// What the bridge counts and what it reports to the simulated device.
//
// Two things. Counters: bridged calls, and CUDA storages whose address lies
// outside the reservation of the allocator under test (a test wants 0: then
// every byte the operators touched came from that allocator). Accesses: in
// `async` mode a bridged operator computes early, at its call, although on a
// device it would still be pending; so each call drains its stream first and
// then logs the device ranges it read and wrote as pending accesses of that
// stream. An unmap, free or host write before a real edge is then a violation.
// In either mode the operands are held while the kernel computes: an unmap by
// anybody, or a copy into them by another thread, is a violation. Not while its
// results are allocated: on a device the kernel is in its stream by then, and
// an allocator that makes room may move the operands, behind that stream. That
// is all there is in `eager` mode (unless the virtual clock needs to know which
// bytes an operator waits for), some tens of nanoseconds per operator.
//
// Thread-safety: the counters are relaxed atomics; an AccessLog belongs to one
// operator call on one thread.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ACCOUNTING_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ACCOUNTING_H_

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

namespace cudasim::bridge {

// Adds one bridged call, here and in the device's own count.
void CountBridgedCall();
long BridgedCalls();

// Until a reservation is announced the whole arena counts as inside.
void SetReservation(uint64_t low, uint64_t high);
// From now on `holds` is asked; it is called from any thread and may not call
// CUDA. It decides before any reservation.
void SetOwner(int (*holds)(uint64_t address));
// Notes that an operator met a CUDA storage of `bytes` at `address`.
void SeeStorage(const void* address, size_t bytes);
long StoragesOutside();

class AccessLog {
 public:
  explicit AccessLog(const char* operator_name)
      : name_(operator_name),
        active_(SimulatedDevice::Get().async() ||
                SimulatedDevice::Get().keeps_time()) {}
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;
  ~AccessLog() {
    if (hold_ != 0) SimulatedDevice::Get().ReleaseRanges(hold_);
  }

  const char* operator_name() const { return name_; }

  // Adds the span of a CUDA tensor (first to last byte its strides reach). An
  // access of a tensor without elements is none.
  void Add(const at::TensorImpl& tensor, bool write) {
    AddSpan(tensor, write ? 1 : 0);
  }
  // The first write to a result that has just been allocated.
  void AddFresh(const at::TensorImpl& tensor) { AddSpan(tensor, 2); }

  // Before the kernel: everything queued on the current stream of `device` is
  // done when this returns, and what was added is held until this object goes.
  void Begin(c10::DeviceIndex device) {
    if (active_) BeginSlow(device);
    if (hold_ == 0 && !accesses_.empty()) {
      hold_ = SimulatedDevice::Get().HoldRanges(
          name_, accesses_.data(), static_cast<int>(accesses_.size()));
    }
  }

  // The kernel has computed: logs what was added, on the stream of Begin(), and
  // holds it no longer. Before anything is allocated.
  void Computed() {
    if (hold_ != 0) SimulatedDevice::Get().ReleaseRanges(hold_);
    hold_ = 0;
    if (active_) EndSlow();
    accesses_.clear();
  }
  // After the operator: logs what was added since.
  void End() {
    if (active_ && !accesses_.empty()) EndSlow();
  }

 private:
  void AddSpan(const at::TensorImpl& tensor, int write);
  void BeginSlow(c10::DeviceIndex device);
  void EndSlow();

  const char* const name_;
  const bool active_;
  void* stream_ = nullptr;
  // The stream's: the default streams of all devices share a handle.
  c10::DeviceIndex device_ = -1;
  long hold_ = 0;
  c10::SmallVector<cudasim_access, 4> accesses_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ACCOUNTING_H_
