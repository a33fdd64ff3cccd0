// SPDX-License-Identifier: Apache-2.0
// Which mallocs of a thread are sampled: one in so many bytes, as tcmalloc
// chooses them. A block of kSiteInterval bytes or more always is. Of smaller
// ones it is the one in which a countdown of bytes ends; each countdown's
// length is drawn anew, exponentially, so that no pattern of a program's keeps
// step with it. The always sampled ones do not count down: beside large
// tensors small ones would never be seen.
//
// Equation: a smaller block of s bytes is sampled with 1 - exp(-s / interval).
//
// Each thread has its own; no lock. Failure: none.
#ifndef STRATALLOC_ACCOUNTING_SITE_SAMPLER_H_
#define STRATALLOC_ACCOUNTING_SITE_SAMPLER_H_

#include <cstdint>

#include "allocator/base/bytes.h"

namespace stratalloc {

// A sample costs 0.8 us, so that a malloc of 512 B pays 6 ns for those that are
// taken, and a leak of 4 KiB a step shows within some 16 steps. README.md,
// "Sites", has what was measured, and why not another.
inline constexpr Bytes kSiteInterval = 64 * kKiB;

class SiteSampler {
 public:
  // Another seed, other countdowns.
  constexpr explicit SiteSampler(std::uint64_t seed) : random_(seed) {}

  // Is a malloc of so many bytes sampled?
  bool Take(Bytes bytes) {
    if (bytes >= kSiteInterval) return true;
    left_ -= static_cast<std::int64_t>(bytes);
    if (__builtin_expect(left_ >= 0, 1)) return false;
    return Restart();
  }
  // This thread's.
  static SiteSampler& ThisThread();

 private:
  // True but for the first time, which only begins.
  bool Restart();

  std::uint64_t random_;
  std::int64_t left_ = 0;
  bool begun_ = false;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SITE_SAMPLER_H_
