// SPDX-License-Identifier: Apache-2.0
// Lists of pages, and their uses, for tests of the timeline.
#ifndef STRATALLOC_TIERING_POLICY_TIMELINE_FIXTURE_TEST_H_
#define STRATALLOC_TIERING_POLICY_TIMELINE_FIXTURE_TEST_H_

#include <vector>

#include "tiering/policy/timeline.h"

namespace stratalloc {

inline void AddAll(Timeline& timeline, const std::vector<Address>& pages) {
  for (Address page : pages) timeline.Add({.page = page});
}

inline std::vector<Address> Range(Address from, Address to) {
  std::vector<Address> pages;
  for (Address page = from; page < to; ++page) pages.push_back(page);
  return pages;
}

inline std::vector<Address> operator+(std::vector<Address> a,
                                      const std::vector<Address>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_POLICY_TIMELINE_FIXTURE_TEST_H_
