// SPDX-License-Identifier: Apache-2.0
//
// pools.h: stream-ordered memory (cudaMallocAsync and its kin). A pool takes
// chunks of 32 MiB, or what is needed, from its device and hands out blocks of
// 512 bytes and more. A freed block carries the clock of its free: an
// allocation ordered after that clock takes it at once, any other one is made
// to wait for it first (what CUDA calls an internal dependency). So an address
// is never handed to a stream that could meet the old owner's work.
//
// For the checker a free is a write of its stream: work on another stream that
// nothing orders with it is a violation, and so is any use asked for after it.
//
// Chunks go back to the device when the program trims, when a synchronisation
// finds more than the release threshold, and when another allocation would
// fail; only those whose frees have been executed.
//
// Not there: sharing pools between processes, pools on the host, a maximal
// size.
//
// Thread-safety: called under the simulator's lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_POOLS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_POOLS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/address_space.h"
#include "tests/simulator/cudasim/clocks.h"
#include "tests/simulator/cudasim/status.h"
#include "tests/simulator/cudasim/streams.h"

namespace cudasim {

// The values of cudaMemPoolAttr.
enum class PoolAttribute : int {
  kReuseFollowEventDependencies = 1,
  kReuseAllowOpportunistic = 2,
  kReuseAllowInternalDependencies = 3,
  kReleaseThreshold = 4,
  kReservedCurrent = 5,
  kReservedHigh = 6,
  kUsedCurrent = 7,
  kUsedHigh = 8,
};

struct Pool {
  struct Block {
    uint64_t bytes = 0;
    uint64_t asked = 0;   // 0: free
    VectorClock freed;    // of a free one: what its next user comes after
    size_t freed_by = 0;  // index of that stream
    uint64_t chunk = 0;   // address
  };

  uint64_t handle = 0;
  int device = 0;
  bool is_default = false;
  bool destroyed = false;  // goes with its last block
  uint64_t attributes[9] = {0, 1, 1, 1, 0, 0, 0, 0, 0};
  std::map<uint64_t, Block> blocks;     // by address, chunks filled
  std::map<uint64_t, uint64_t> chunks;  // address -> bytes
  std::map<int, Access> access;         // of other devices
};

class Pools {
 public:
  explicit Pools(int devices);
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  Pool* Default(int device) { return pools_.at(first_[device]).get(); }
  Pool* Current(int device) { return Find(current_[device]); }
  // kInvalidValue unless the pool is one of that device.
  Status SetCurrent(int device, uint64_t handle);
  // nullptr for what is none, or destroyed.
  Pool* Find(uint64_t handle);
  uint64_t Create(int device);
  // kInvalidValue for a default pool.
  Status Destroy(uint64_t handle);

  // kOutOfMemory when neither the pool nor its device has the bytes.
  Status Allocate(Pool* pool, uint64_t bytes, Stream* stream,
                  uint64_t* address);
  // kInvalidValue unless the address is that of a live block. The caller has
  // submitted the free to the stream: `after` covers it.
  Status Free(uint64_t address, const VectorClock& after, size_t stream);

  // The first three attributes are ints, the others 64 bits wide.
  Status SetAttributeFrom(Pool* pool, int attribute, const void* value);
  Status GetAttributeInto(const Pool& pool, int attribute, void* value) const;
  // Another device's rights; kInvalidDevice without a link.
  Status SetAccess(Pool* pool, int device, Access access);
  Access GetAccess(const Pool& pool, int device) const;

  // Gives chunks back until at most `keep` bytes are reserved.
  void Trim(Pool* pool, uint64_t keep);
  // After a synchronisation: what exceeds the release thresholds goes.
  void AfterSynchronize();
  // Everything that is free goes, for another allocation on the device. True
  // if something did.
  bool GiveBack(int device);

  // The live block around the address.
  bool FindBlock(uint64_t address, uint64_t* start, uint64_t* bytes,
                 Pool** pool);
  // Empty unless the range lies in a pool and not in one live block.
  std::string Problem(uint64_t address, uint64_t bytes);
  // For the leak report: live blocks, address -> bytes.
  std::map<uint64_t, uint64_t> Live() const;
  // Every free chunk goes back, created pools without blocks are forgotten.
  void Reset();

 private:
  using BlockIterator = std::map<uint64_t, Pool::Block>::iterator;

  Pool* PoolAround(uint64_t address, BlockIterator* block);
  // A free block of at least the size, the best one; end() if none.
  BlockIterator Choose(Pool* pool, uint64_t bytes, const Stream& stream,
                       const VectorClock& past);
  Status Grow(Pool* pool, uint64_t bytes);
  void Join(Pool* pool, BlockIterator block);
  bool GiveBackChunk(Pool* pool, uint64_t chunk);

  std::map<uint64_t, std::unique_ptr<Pool>> pools_;
  std::vector<uint64_t> first_;    // by device
  std::vector<uint64_t> current_;  // by device
  uint64_t next_handle_ = 0x9001000010;
  bool used_ = false;
};

// The calls, as both the driver and the runtime offer them. `pool` 0: the
// current one of the stream's device. Take the simulator's lock themselves.
Status AllocateAsync(const char* name, uint64_t bytes, uint64_t pool,
                     uint64_t stream, uint64_t* address);
Status FreeAsync(const char* name, uint64_t address, uint64_t stream);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_POOLS_H_
