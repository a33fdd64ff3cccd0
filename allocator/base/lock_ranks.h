// SPDX-License-Identifier: Apache-2.0
// Every lock of the product in acquisition order: a thread may only take a
// lock of a higher rank than any it holds, and of one rank in the order of
// their addresses. Debug builds (STRATALLOC_DEBUG) abort on a reversal.
#ifndef STRATALLOC_ALLOCATOR_BASE_LOCK_RANKS_H_
#define STRATALLOC_ALLOCATOR_BASE_LOCK_RANKS_H_

namespace stratalloc {

enum class LockRank : int {
  kSwitches = 5,   // the level of telemetry, with what it begins and ends
  kRegistry = 10,  // process-wide set-up. In the bridge: history's settings,
                   // observers, the cache of imports, which opens under it
                   // what kImports lists
  kOpening = 12,   // devices are opened, and what is set for those that are not
  kImports = 15,   // memory of other processes: mapped under it, closed (which
                   // waits for the device) without it
  kAdmission = 25,  // threads that wait for room on the device, in order
  kJoining = 28,    // a device joins tiering, or tiering is switched off
  kArbiter = 30,    // one step of an eviction or restore at a time, of one
                    // device; held across copies and I/O, so never taken under
                    // kDevice. Another device's is only tried
  kLower = 35,     // what the devices share below: budgets, the disk's opening,
                   // the staging buffers
  kTier = 40,      // slabs of the host tier, which are pinned under it; a
                   // program's own spill file, across its I/O
  kDisk = 41,      // one transfer of a spill file at a time, across its I/O
  kIo = 43,        // requests that the disk's thread is handed; leaf
  kLeaves = 44,    // what was chosen to leave a device; nothing but events
                   // given back under it
  kPins = 45,      // holders of pins on blocks, asked to take them back when
                   // victims are chosen
  kDevice = 50,    // blocks, pools and handle states of one device; under it:
                   // no waiting for events, I/O or threads, no callbacks into
                   // Python, no logging. But for a thread's first event, once:
                   // its ring gets its room on the disk (allocator/events)
  kExtents = 64,   // what of a spill file is free; leaf
  kMoves = 65,     // when moves of a device were under way; leaf
  kUses = 67,      // uses that operators noted, and pages that were made and
                   // freed, for the planner; leaf
  kShares = 68,    // what is exported for other processes, and the start of
                   // the thread that gives it to them; leaf
  kLedger = 70,    // charge and credit; leaf
  kFrames = 75,    // the numbers of frame accounts; leaf
  kScopes = 80,    // names of scopes and of sites; leaf
  kInterner = 90,  // what is made once: CUDA's entry points, loaded kernels,
                   // the list of threads; leaf
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_BASE_LOCK_RANKS_H_
