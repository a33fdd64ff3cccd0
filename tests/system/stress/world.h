// SPDX-License-Identifier: Apache-2.0
// What the threads of a program share: its devices, what is possible in it, the
// blocks that change hands, and the list of what went wrong.
//
// Thread-safety: what no comment puts under `mutex` is written before the
// threads run, or locks on its own.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_WORLD_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_WORLD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/system/stress/planned_faults.h"
#include "tests/system/stress/shadow.h"
#include "tiering/engine/rig_test.h"

namespace stratalloc {

// A device, and those who work on it.
struct Place {
  DeviceAllocator* device = nullptr;
  double fraction = 1.0;  // the most that a step allows
  int workers = 0;        // that have it for their own
  Bytes transient = 0;    // the most that one operator takes, in handles
  Bytes largest = 0;      // no block is larger, but for its first MiB
  Bytes live = 0;         // the most that one worker keeps, if roomy
  std::vector<StreamId> streams;
  std::vector<std::unique_ptr<Shadow>> shared;

  // What the operators of all workers take, but for `own` of them.
  Bytes TransientOfOthers(int own) const {
    return transient * static_cast<Bytes>(workers - own);
  }
};

struct World {
  Rig* rig = nullptr;
  bool threaded = false;
  bool background = false;
  bool disk = false;
  bool corruption =
      false;            // what is read from the disk has rotten now and then
  bool faulty = false;  // makes driver calls fail now and then
  // Captures graphs, forks, and has a disk that answers late.
  bool has_system_steps = false;
  // Nothing fails, the host holds everything, and between two operators nobody
  // has transient blocks: what fits on a device beside those of the others'
  // operators is never refused, however many wait.
  bool roomy = false;
  std::atomic<std::uint64_t> left{0};  // outermost operators that have returned
  int scope_count = 8;
  std::vector<Place> places;
  std::vector<Bytes> sizes;  // that come again and again, as in a model
  std::atomic<std::uint64_t> pools{0};
  PlannedFaults faults;

  std::mutex mutex;
  // Blocks on their way to whoever frees them; under `mutex`.
  std::vector<std::unique_ptr<Shadow>> handed;
  std::string wrong;  // first problems; under `mutex`
  void Complain(const std::string& what);
};

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_WORLD_H_
