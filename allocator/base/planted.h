// SPDX-License-Identifier: Apache-2.0
// Bugs that a test plants, to prove that it would find them. The product is
// compiled without STRATALLOC_PLANT: STRATALLOC_PLANTED is the constant false
// there and costs nothing. tests/system/stress and tests/system/differential
// compile their own copies with it.
//
// Thread-safety: PlantBug once, before other threads run.
#ifndef STRATALLOC_ALLOCATOR_BASE_PLANTED_H_
#define STRATALLOC_ALLOCATOR_BASE_PLANTED_H_

#ifdef STRATALLOC_PLANT
#include <cstring>

namespace stratalloc {

enum class Plant {
  kNone,
  kMissingEvent,  // an eviction does not wait for the streams in use
  kLostDirty,     // the guard forgets that an operator writes
  kEarlyReuse,    // freed handles are reused before their streams are done
  kBinnedInUse,   // a block that another stream may use goes into a bin
  kBinnedAway,    // a block whose handles may be away goes into a bin
  kNotBack,       // what left while a thread waited is not brought back
  kNotNoted,      // what operators noted before a wait is forgotten by it
  kOtherDevice,   // an eviction fences with the first device's stream
  kUnheardError,  // a copy to the device that fails is taken for made
  kLateEvent,     // the last event of a stream is looked at one free too late
  kWrongSplit,    // statistics count a split block's remainder in part
  kLostBlock,     // a freed block of megabytes is never found again
  kUsedSince,     // a page leaves though it was used since it was chosen
  kUnsettledEnd,  // an eviction ends while its copies are still being made
  kSharedFence,   // all pages of a choice wait for the streams of its first
  kUnorderedArrival,  // no stream waits for the copy of a page that arrives
  kEarlyArrival,      // a page is resident before its copy is complete
  kIgnoredPin,        // an eviction takes pages that operators use
  kFirstStream,       // a fence has the event of the first stream alone
  kReusedStaging,     // a staging buffer is written while a copy reads it
  kEarlyBuffer,       // a host buffer is given up while a copy reads it
  kUndrainedResume,   // a thread resumes before its pages have arrived
};
inline Plant planted_bug = Plant::kNone;

inline bool PlantBug(const char* name) {
  if (std::strcmp(name, "missing_event") == 0) {
    planted_bug = Plant::kMissingEvent;
  } else if (std::strcmp(name, "lost_dirty") == 0) {
    planted_bug = Plant::kLostDirty;
  } else if (std::strcmp(name, "early_reuse") == 0) {
    planted_bug = Plant::kEarlyReuse;
  } else if (std::strcmp(name, "binned_in_use") == 0) {
    planted_bug = Plant::kBinnedInUse;
  } else if (std::strcmp(name, "binned_away") == 0) {
    planted_bug = Plant::kBinnedAway;
  } else if (std::strcmp(name, "not_back") == 0) {
    planted_bug = Plant::kNotBack;
  } else if (std::strcmp(name, "not_noted") == 0) {
    planted_bug = Plant::kNotNoted;
  } else if (std::strcmp(name, "other_device") == 0) {
    planted_bug = Plant::kOtherDevice;
  } else if (std::strcmp(name, "unheard_error") == 0) {
    planted_bug = Plant::kUnheardError;
  } else if (std::strcmp(name, "late_event") == 0) {
    planted_bug = Plant::kLateEvent;
  } else if (std::strcmp(name, "wrong_split") == 0) {
    planted_bug = Plant::kWrongSplit;
  } else if (std::strcmp(name, "lost_block") == 0) {
    planted_bug = Plant::kLostBlock;
  } else if (std::strcmp(name, "used_since") == 0) {
    planted_bug = Plant::kUsedSince;
  } else if (std::strcmp(name, "unsettled_end") == 0) {
    planted_bug = Plant::kUnsettledEnd;
  } else if (std::strcmp(name, "shared_fence") == 0) {
    planted_bug = Plant::kSharedFence;
  } else if (std::strcmp(name, "unordered_arrival") == 0) {
    planted_bug = Plant::kUnorderedArrival;
  } else if (std::strcmp(name, "early_arrival") == 0) {
    planted_bug = Plant::kEarlyArrival;
  } else if (std::strcmp(name, "ignored_pin") == 0) {
    planted_bug = Plant::kIgnoredPin;
  } else if (std::strcmp(name, "first_stream") == 0) {
    planted_bug = Plant::kFirstStream;
  } else if (std::strcmp(name, "reused_staging") == 0) {
    planted_bug = Plant::kReusedStaging;
  } else if (std::strcmp(name, "early_buffer") == 0) {
    planted_bug = Plant::kEarlyBuffer;
  } else if (std::strcmp(name, "undrained_resume") == 0) {
    planted_bug = Plant::kUndrainedResume;
  } else {
    return false;
  }
  return true;
}

}  // namespace stratalloc
#define STRATALLOC_PLANTED(bug) \
  (::stratalloc::planted_bug == ::stratalloc::Plant::bug)
#else
namespace stratalloc {
inline bool PlantBug(const char*) { return false; }
}  // namespace stratalloc
#define STRATALLOC_PLANTED(bug) false
#endif

#endif  // STRATALLOC_ALLOCATOR_BASE_PLANTED_H_
