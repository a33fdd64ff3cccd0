// SPDX-License-Identifier: Apache-2.0
//
// The bytes that captured operators would have written. A device executes
// nothing during a capture, so device memory must not change; but a CPU kernel
// has to run once to tell the shapes of its results, and the next one needs
// plausible inputs (an index out of range would raise). So while a stream
// captures, every storage that is written gets a copy in ordinary memory, and
// captured operators read and write copies. They are dropped when the capture
// ends.
//
// Storages come and go and addresses are used again: copies that overlap are
// merged, the youngest bytes win.
//
// Thread-safety: any thread. Takes no lock of the simulated device's while
// holding its own, but for a question about mapped ranges; the device tells of
// a capture's end through a lock of its own.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHADOW_BYTES_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHADOW_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace cudasim::bridge {

class ShadowBytes {
 public:
  // Those of a capture; made at the first call. Drops those of captures that
  // have ended.
  static std::shared_ptr<ShadowBytes> Of(unsigned long long capture);
  // Has the device tell of ends. Once, at installation.
  static void Connect();

  // Where a captured operator finds the bytes of a storage: the copy, made now
  // if `write`; the device's own if nothing was written there. Valid until the
  // next call that makes a copy of an overlapping range.
  char* At(uint64_t address, size_t bytes, bool write);
  // True if an operator of the capture wrote any of these bytes.
  bool Holds(uint64_t address, size_t bytes);

 private:
  struct Range {
    uint64_t end = 0;
    std::vector<char> bytes;
  };

  // The first range that ends after `address`. REQUIRES: mu_ is held.
  std::map<uint64_t, Range>::iterator FirstAfter(uint64_t address);

  std::mutex mu_;
  std::map<uint64_t, Range> ranges_;  // by start, disjoint
  // Copies that were merged away; an operator may still hold them.
  std::vector<std::vector<char>> merged_;
};

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_SHADOW_BYTES_H_
