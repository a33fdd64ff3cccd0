// SPDX-License-Identifier: Apache-2.0
// One seeded random program on the core and the simulated device: everything
// it does follows from the seed, except how its threads interleave.
//
// A program makes one or two tiny devices, runs up to 200 steps on them, frees
// all it allocated and asks every room for its invariants, the simulator for
// violations and leaks, and a shadow of every block for its bytes.
//
// The simulator must have two devices (CUDASIM_DEVICES).
//
// Thread-safety: one program at a time in a process.
#ifndef STRATALLOC_TESTS_SYSTEM_STRESS_PROGRAM_H_
#define STRATALLOC_TESTS_SYSTEM_STRESS_PROGRAM_H_

#include <cstdint>
#include <string>

#include "tests/system/stress/planned_faults.h"

namespace stratalloc {

// What programs did, added up; a test that asserts nothing happened is caught
// by a zero here.
struct Tally {
  std::uint64_t programs = 0, threaded = 0, with_disk = 0, with_background = 0;
  std::uint64_t two_devices = 0, elsewhere = 0, copies = 0;
  std::uint64_t freed_elsewhere = 0;
  std::uint64_t not_opened = 0;  // no device could be opened
  PlannedFaults::ByCall faults_by_call;
  std::uint64_t steps = 0, mallocs = 0, frees = 0, operators = 0, scopes = 0;
  std::uint64_t refused_mallocs = 0, refused_operators = 0;
  std::uint64_t evictions = 0, restores = 0, planned = 0, clean_drops = 0;
  std::uint64_t faults = 0, poisoned = 0, verified = 0;
  std::uint64_t from_bins = 0, into_bins = 0, pools = 0, gone_back = 0;
  std::uint64_t handed = 0;
  std::uint64_t captures = 0, forks = 0, late = 0;
  std::uint64_t roomy = 0, outermost = 0, nested = 0, inside = 0;
  std::uint64_t blocked = 0, met = 0, waited = 0, ousted = 0;
  std::uint64_t lists = 0, slices = 0, halved = 0, refused_lists = 0;
  std::uint64_t evicted_bytes = 0, restored_bytes = 0;
  std::uint64_t to_disk_bytes = 0, from_disk_bytes = 0;
};

struct ProgramOptions {
  std::uint64_t seed = 0;
  // -1: a third of the seeds has 2 to 4 threads, and roomy ones up to 8; else
  // this many.
  int threads = -1;
  int devices = -1;  // 1 or 2; -1: a third of the seeds has two
};

// "" if all is well, else what is wrong, one line each.
std::string RunProgram(const ProgramOptions& options, Tally* tally);

}  // namespace stratalloc

#endif  // STRATALLOC_TESTS_SYSTEM_STRESS_PROGRAM_H_
