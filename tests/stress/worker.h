// SPDX-License-Identifier: Apache-2.0
// One thread of a program: its random numbers, its blocks, its steps.
//
// A worker is a correct user of the allocator: it orders streams with events
// before one uses what another wrote, and before a free it either recorded
// the stream or waited for it. Whatever the simulator objects to is therefore
// the product's fault.
//
// Thread-safety: a worker belongs to its thread; what workers share is the
// World.
#ifndef STRATALLOC_TESTS_STRESS_WORKER_H_
#define STRATALLOC_TESTS_STRESS_WORKER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/cudasim/cuda_calls.h"
#include "tests/stress/nest.h"
#include "tests/stress/program.h"
#include "tests/stress/shadow.h"
#include "tiering/engine/rig_test.h"

namespace stratalloc {

struct World {
  Rig* rig = nullptr;
  bool threaded = false;
  bool background = false;
  bool disk = false;
  bool corruption = false;  // flips bytes of the spill file now and then
  bool faults = false;      // makes driver calls fail now and then
  // Nothing fails, the host holds everything, and between two operators nobody
  // has transient blocks: what fits on the device beside those of the others'
  // operators is never refused, however many wait.
  bool roomy = false;
  Bytes transient = 0;         // the most that one operator takes, in handles
  Bytes others_transient = 0;  // ... that those of all other threads take
  Bytes largest = 0;           // no block is larger, but for its first MiB
  Bytes live = 0;              // the most that one worker keeps, if roomy
  std::atomic<std::uint64_t> left{0};  // outermost operators that have returned
  int scope_count = 8;
  double fraction = 1.0;  // the most that a step allows
  std::vector<StreamId> streams;
  std::vector<std::unique_ptr<Shadow>> shared;
  std::vector<Bytes> sizes;  // that come again and again, as in a model
  std::atomic<std::uint64_t> pools{0};
  // Blocks on their way to whoever frees them; under `mutex`.
  std::vector<std::unique_ptr<Shadow>> handed;

  std::mutex mutex;
  std::string wrong;  // first problems; under `mutex`
  void Complain(const std::string& what);
};

class Worker {
 public:
  Worker(World& world, std::uint64_t seed);
  ~Worker();
  void Run(int steps);
  void FreeAll();
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
  bool FitsAlone(Bytes handles) const;
  // For want of room? Then the operators around it have all they use, and a
  // correct user may go on; after any other error they must end.
  bool NoteRefusal(const char* what, const Error& error, Bytes handles);

  // list_steps.cc
  struct List;
  void StepList();
  std::size_t RunSlice(List& list, std::size_t first, std::size_t count);

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
  // Makes `later` wait for all that `earlier` has been given.
  void Order(StreamId earlier, StreamId later);
  std::vector<AddressRange> SomeRanges();

  World& world_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Shadow>> blocks_;
  Tally tally_;
  CUevent event_ = nullptr;
  PoolId pool_;  // none before the first StepPool
  bool lends_ = false;
  bool routed_ = false;  // what is allocated now lies in `pool_`
  std::optional<Checkpoint> checkpoint_;
  std::map<Address, StreamId> homes_;  // of the blocks in it
  bool ousted_ = false;  // the last malloc that failed: not for want of room
  int faulty_ = 0;       // steps until planned failures are taken back
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_STRESS_WORKER_H_
