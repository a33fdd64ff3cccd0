// SPDX-License-Identifier: Apache-2.0
//
// arena.h: the address space of the simulated device.
//
//   base              base + size           base + 2 * size
//    | device addresses | their bytes ("view") |
//    |  PROT_NONE       |  shared file pages   |
//
// The whole of it is taken from the host's address space once, at load, and
// never given back. A device address stays unreadable, so host code that
// dereferences one faults as it would on a machine with a GPU; the bytes lie
// delta() = size further up, where only copies, twins and the operator bridge
// look. Phantom memory (extents.h) shows no page anywhere, so a process that
// starts with it has no second half: delta() is 0, and what is located on the
// host shows its bytes where it is mapped.
//
// Thread-safety: immutable after construction; Show and Hide change pages and
// are called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_ARENA_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_ARENA_H_

#include <cstdint>

namespace cudasim {

// Physical memory and mappings come in units of 2 MiB, as on every NVIDIA
// device since Volta.
inline constexpr uint64_t kGranularity = uint64_t{2} << 20;

class Arena {
 public:
  // Ends the process with one line if not even 16 GiB of addresses are left.
  // `phantom`: 80 TiB of device addresses instead of 1 TiB, so that eight
  // devices of a real size each have the addresses that an allocator reserves
  // (9 TiB for a card of 141 GiB). A GPU has 128 TiB for the program, which
  // here are those of the host too. Addresses that show no page cost nothing.
  explicit Arena(bool phantom = false);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }
  uint64_t delta() const { return delta_; }

  bool IsDevice(uint64_t address) const { return address - base_ < size_; }
  bool IsView(uint64_t address) const {
    return delta_ != 0 && address - (base_ + delta_) < size_;
  }
  char* View(uint64_t device_address) const {
    return reinterpret_cast<char*>(device_address + delta_);
  }

  // Lets the view of [address, +bytes) show the file's bytes from `offset`.
  // Returns false if the kernel refuses (too many mappings).
  bool ShowView(uint64_t address, uint64_t bytes, int file, uint64_t offset,
                bool writable);
  bool HideView(uint64_t address, uint64_t bytes);
  // The same for the device address itself: only memory located on the host
  // that was granted to the host may be read there.
  bool ShowToHost(uint64_t address, uint64_t bytes, int file, uint64_t offset);
  bool HideFromHost(uint64_t address, uint64_t bytes);

 private:
  uint64_t base_ = 0;
  uint64_t size_ = 0;
  uint64_t delta_ = 0;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_ARENA_H_
