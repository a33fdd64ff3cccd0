// SPDX-License-Identifier: Apache-2.0
#include "accounting/site_sampler.h"

#include <atomic>
#include <cmath>

namespace stratalloc {
namespace {

// splitmix64: any seed will do.
std::uint64_t Next(std::uint64_t* state) {
  std::uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Exponential, of mean kSiteInterval.
std::int64_t Countdown(std::uint64_t* state) {
  // In (0, 1]: 53 bits, and never 0.
  const double uniform = (static_cast<double>(Next(state) >> 11) + 1) * 0x1p-53;
  return static_cast<std::int64_t>(-std::log(uniform) *
                                   static_cast<double>(kSiteInterval));
}

}  // namespace

bool SiteSampler::Restart() {
  if (!begun_) {
    // The bytes of this call count down what begins with it.
    begun_ = true;
    left_ += Countdown(&random_);
    if (left_ >= 0) return false;
  }
  left_ = Countdown(&random_);
  return true;
}

SiteSampler& SiteSampler::ThisThread() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local SiteSampler mine(
      threads.fetch_add(1, std::memory_order_relaxed));
  return mine;
}

}  // namespace stratalloc
