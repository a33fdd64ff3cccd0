// SPDX-License-Identifier: Apache-2.0
//
// The bridge's view of the simulated device: where its arena lies and the
// control functions the bridge calls.
//
// The functions are looked up with dlsym in the libcuda.so.1 that the process
// has already loaded. The bridge links neither libcuda nor libcudart, so it can
// never drag a second device into the process, and on a machine with a real
// driver it finds no cudasim_* name and refuses to install.
//
// Thread-safety: Connect() runs once, before any other function here and before
// other threads run operators; everything is read-only afterwards.
// Lifetime: process.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SIMULATED_DEVICE_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SIMULATED_DEVICE_H_

#include <cstdint>
#include <string>

#include "tests/simulator/cudasim/control.h"

namespace cudasim::bridge {

class SimulatedDevice {
 public:
  // The one instance. Valid (but not connected) from the start.
  static SimulatedDevice& Get() { return instance_; }

  // Looks the control functions up. Returns an empty string, or what is
  // missing and what to load first. Idempotent.
  std::string Connect();

  bool connected() const { return note_access_ != nullptr; }

  // True for an address the simulated device handed out. Everything else
  // (host memory, pinned or not) is readable as it is.
  bool InArena(const void* address) const {
    return reinterpret_cast<uint64_t>(address) - arena_base_ < arena_size_;
  }

  // Where the host finds the bytes of `address`; unchanged outside the arena.
  void* HostView(const void* address) const {
    const uint64_t value = reinterpret_cast<uint64_t>(address);
    return reinterpret_cast<void*>(
        value - arena_base_ < arena_size_ ? value + delta_ : value);
  }

  // True if every byte of the device range is mapped and granted.
  bool Accessible(const void* address, size_t bytes) const {
    return range_is_accessible_(reinterpret_cast<uint64_t>(address), bytes) !=
           0;
  }

  // False with CUDASIM_NUMBERS=off: operators find shapes only.
  bool numbers() const { return numbers_; }

  bool async() const { return mode_() != 0; }

  // A card or a profile is in force on some device: operators cost something.
  bool keeps_time() const { return time_is_kept_() != 0; }
  bool IsModelled(int device) const { return is_modelled_(device) != 0; }
  double CardFigure(int device, const char* figure) const {
    return card_figure_(device, figure);
  }
  // False if a capture forbids it: cublasCreate allocates.
  bool LoadCublas(int device) const { return load_cublas_(device) == 0; }
  void OperatorCost(void* stream, double flops, double bytes, int dtype) const {
    operator_cost_(stream, flops, bytes, dtype);
  }
  // Bytes that moved between pageable host memory and the device without a
  // CUDA call.
  void CopyCost(void* stream, bool to_device, double bytes) const {
    copy_cost_(stream, to_device ? 1 : 0, bytes);
  }

  // The sticky error of `device` (a cudaError_t), 0 while it is healthy. One
  // call and one load then.
  int StickyError(int device) const {
    return broken_() == 0 ? 0 : device_error_(device);
  }

  void BeginOperator(void* stream, const char* name) const {
    begin_operator_(stream, name);
  }
  void NoteAccess(void* stream, const char* name,
                  const cudasim_access* accesses, int count) const {
    note_access_(stream, name, accesses, count);
  }
  // Some stream captures.
  bool captures() const { return captures_() != 0; }
  // cudaStreamCaptureStatus of a stream, and its capture's id.
  int StreamCapture(void* stream, unsigned long long* id) const {
    return stream_capture_(stream, id);
  }
  // 0 or the CUDA error. The state belongs to the device from here on.
  int CaptureOperator(void* stream, const char* name,
                      const cudasim_access* accesses, int count,
                      int (*run)(void*), void (*destroy)(void*),
                      void* state) const {
    return capture_operator_(stream, name, accesses, count, run, destroy,
                             state);
  }
  void OnCaptureEnd(void (*function)(unsigned long long)) const {
    on_capture_end_(function);
  }
  long HoldRanges(const char* name, const cudasim_access* accesses,
                  int count) const {
    return hold_ranges_(name, accesses, count);
  }
  void ReleaseRanges(long token) const { release_ranges_(token); }
  void CountBridged(long operators) const { count_bridged_(operators); }

 private:
  static SimulatedDevice instance_;

  uint64_t arena_base_ = 0;
  uint64_t arena_size_ = 0;  // 0 until connected: nothing is in the arena
  uint64_t delta_ = 0;
  bool numbers_ = true;
  decltype(&cudasim_mode) mode_ = nullptr;
  decltype(&cudasim_time_is_kept) time_is_kept_ = nullptr;
  decltype(&cudasim_is_modelled) is_modelled_ = nullptr;
  decltype(&cudasim_card_figure) card_figure_ = nullptr;
  decltype(&cudasim_load_cublas) load_cublas_ = nullptr;
  decltype(&cudasim_operator_cost) operator_cost_ = nullptr;
  decltype(&cudasim_copy_cost) copy_cost_ = nullptr;
  decltype(&cudasim_broken) broken_ = nullptr;
  decltype(&cudasim_device_error) device_error_ = nullptr;
  decltype(&cudasim_range_is_accessible) range_is_accessible_ = nullptr;
  decltype(&cudasim_begin_operator) begin_operator_ = nullptr;
  decltype(&cudasim_note_access) note_access_ = nullptr;
  decltype(&cudasim_hold_ranges) hold_ranges_ = nullptr;
  decltype(&cudasim_release_ranges) release_ranges_ = nullptr;
  decltype(&cudasim_count_bridged) count_bridged_ = nullptr;
  decltype(&cudasim_captures) captures_ = nullptr;
  decltype(&cudasim_stream_capture) stream_capture_ = nullptr;
  decltype(&cudasim_capture_operator) capture_operator_ = nullptr;
  decltype(&cudasim_on_capture_end) on_capture_end_ = nullptr;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SIMULATED_DEVICE_H_
