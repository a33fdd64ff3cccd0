// SPDX-License-Identifier: Apache-2.0
// One thread of a program: its random numbers, its blocks, its steps.
//
// A worker is a correct user of the allocator: it orders streams with events
// before one uses what another wrote, and before a free it either recorded
// the stream or waited for it. Whatever the simulator objects to is therefore
// the product's fault.
//
// It works on one device. What it does on others: it moves their bytes by name,
// frees blocks that were handed to it, and copies to and from them.
//
// Thread-safety: a worker belongs to its thread, and some take turns on one;
// what workers share is the World.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_WORKER_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_WORKER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/cuda_calls.h"
#include "tests/system/stress/nest.h"
#include "tests/system/stress/program.h"
#include "tests/system/stress/shadow.h"
#include "tests/system/stress/world.h"

namespace stratalloc {

class Worker {
 public:
  Worker(World& world, std::size_t place, std::uint64_t seed);
  ~Worker();
  void Run(int steps);
  void FreeAll();  // reads each block before
  const Tally& tally() const { return tally_; }

  // Allocates; nullptr if the device is full, which is no fault.
  std::unique_ptr<Shadow> Allocate(Bytes bytes) {
    return Allocate(bytes, SomeStream());
  }
  std::unique_ptr<Shadow> Allocate(Bytes bytes, StreamId stream);
  void Free(std::unique_ptr<Shadow> block);

 private:
  static constexpr std::size_t kMostBlocks = 48;

  std::uint64_t Below(std::uint64_t n) { return random_() % n; }
  bool Chance(int percent) { return Below(100) < std::uint64_t(percent); }
  Place& here() { return world_.places[place_]; }
  Place& PlaceOf(const Shadow& block) { return world_.places[block.place]; }
  DeviceAllocator& device() { return *here().device; }
  Engine& engine() { return world_.rig->engine(); }
  // An error that no planned failure explains is a complaint.
  void Judge(const char* what, const Error& error);
  void JudgeRestore(const Result<Bytes>& moved);
  Bytes SomeSize();
  StreamId SomeStream();

  void Step();
  void StepRoomy();
  void StepMalloc(Bytes bytes);
  void StepFree();
  void StepBurst();
  void StepHand();
  void StepOperator();
  void StepScope();
  void StepEvict();
  void StepRestore();
  void StepFault();
  void StepRare();

  // operator_steps.cc
  void StepNest();
  bool RunOperator(Nest& nest, int depth);
  bool AllocateInside(Nest& nest, StreamId stream);
  void AwaitOthers();
  // Part of the operator under way: its blocks must be there.
  void Launch(StreamId stream, const std::vector<Shadow*>& blocks,
              const std::vector<bool>& written);
  void LeaveOperator();
  // Blocks that fit into `nest`, and which of them are written.
  void Pick(Nest& nest, Bytes room, std::vector<Shadow*>& operands,
            std::vector<bool>& written);
  bool FitsAlone(const Place& place, Bytes handles) const;
  // For want of room? Then the operators around it have all they use, and a
  // correct user may go on; after any other error they must end.
  bool NoteRefusal(const char* what, const Place& place, const Error& error,
                   Bytes handles);

  // device_steps.cc
  // Whoever launches makes its device current first, as PyTorch does.
  void UseDevice(std::size_t place);
  // Makes `later` wait for all that `earlier` has been given.
  void Order(std::size_t place, StreamId earlier, StreamId later);
  void Order(std::size_t place, StreamId earlier, std::size_t other,
             StreamId later);
  void Copy(Shadow& there);
  void StepElsewhere();

  // list_steps.cc
  struct List;
  void StepList();
  std::size_t RunSlice(List& list, std::size_t first, std::size_t count);

  // system_steps.cc
  void StepSystem();
  void StepFork();
  void StepCapture();
  void Capture(PoolId pool, const std::vector<Shadow*>& reads,
               const std::vector<Access>& accesses);
  // The captured operator's kernel, which runs when the graph does.
  void NoteReads(const std::vector<Shadow*>& reads,
                 const std::vector<Access>& accesses);
  void Replay(cudaGraph_t graph, const std::vector<Shadow*>& reads);

  // pool_steps.cc
  void StepPool();
  void AllocateInPool();
  void TakeCheckpoint();
  void GoBack();
  void LeavePool();
  void ComparePool();
  void Expect(const Status& status, const char* what);

  // `handles`: what this thread's operators need with it; 0: it alone.
  std::unique_ptr<Shadow> Acquire(Bytes bytes, StreamId stream,
                                  LifetimeClass lifetime, Bytes handles = 0);
  Bytes LiveBytes() const;
  void NoteUsed(Shadow& block, StreamId stream, bool written);
  // `blocks` on `stream`; those at odd places of `written` are written.
  void Operate(StreamId stream, const std::vector<Shadow*>& blocks,
               const std::vector<bool>& written);
  std::vector<AddressRange> SomeRanges();

  World& world_;
  const std::size_t place_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Shadow>> blocks_;
  Tally tally_;
  std::vector<CUevent> events_;         // by place
  StreamId captured_ = kDefaultStream;  // used by captures alone
  PoolId pool_;                         // none before the first StepPool
  bool lends_ = false;
  bool routed_ = false;  // what is allocated now lies in `pool_`
  std::optional<Checkpoint> checkpoint_;
  std::map<Address, StreamId> homes_;  // of the blocks in it
  bool ousted_ = false;  // the last malloc that failed: not for want of room
  int faulty_ = 0;       // steps until planned failures are taken back
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_WORKER_H_
