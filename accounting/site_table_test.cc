// SPDX-License-Identifier: Apache-2.0
#include "accounting/site_table.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace stratalloc {
namespace {

TEST(SiteTableTest, SameTextSameSite) {
  const SiteId here = InternSite("a.py:1 f");
  EXPECT_EQ(InternSite("a.py:1 f"), here);
  EXPECT_NE(InternSite("a.py:2 f"), here);
  EXPECT_EQ(SiteName(here), "a.py:1 f");
  EXPECT_EQ(InternSite(""), kNoPythonFrame);
  EXPECT_EQ(SiteName(kNoSite), "(not sampled)");
  EXPECT_EQ(SiteName(kOtherSites), "(other sites)");
  EXPECT_EQ(SiteName(kNoPythonFrame), "(no Python frame)");
  EXPECT_EQ(SiteName(SiteId{1u << 30}), "site #1073741824");
}

TEST(SiteTableTest, LongTextsAreCutBetweenCharacters) {
  // The two bytes of the last one begin at the last byte that has room.
  const std::string text = std::string(kMostSiteText - 1, 'x') + "\xC3\xA9";
  EXPECT_EQ(SiteName(InternSite(text)), text.substr(0, kMostSiteText - 1));
  const std::string fits = std::string(kMostSiteText - 2, 'y') + "\xC3\xA9";
  EXPECT_EQ(SiteName(InternSite(fits + "z")), fits);
}

TEST(SiteTableTest, AMillionLinesAreBounded) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 250'000; ++i) {
        InternSite("gen.py:" + std::to_string(4 * i + t) + " f");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const SiteCounts counts = CountSites();
  EXPECT_EQ(counts.distinct, kMostSites);
  EXPECT_GE(counts.refused, 1'000'000 - kMostSites);
  EXPECT_EQ(InternSite("late.py:1 f"), kOtherSites);
  EXPECT_EQ(CountSites().refused, counts.refused + 1);
  // Those that came in time have theirs.
  EXPECT_EQ(SiteName(SiteId{3 + kMostSites}),
            "site #" + std::to_string(3 + kMostSites));
  const std::string first = SiteName(SiteId{3});
  EXPECT_EQ(InternSite(first), SiteId{3});
}

}  // namespace
}  // namespace stratalloc
