// SPDX-License-Identifier: Apache-2.0
// Pages that are made again and again: the timeline does not follow their uses.
#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <vector>

#include "tiering/policy/timeline.h"
#include "tiering/policy/timeline_fixture_test.h"

namespace stratalloc {
namespace {

// A training step of 40 layers on pages that an allocator chooses anew each
// time: gradients on one page or two, and temporaries of the optimizer that are
// freed a layer late.
class Training {
 public:
  void Step(Timeline& timeline) {
    for (Address layer : Range(0, kLayers)) timeline.Add({.page = layer});
    std::vector<std::vector<Address>> gradients(kLayers);
    for (Address layer = kLayers; layer-- > 0;) {
      timeline.Add({.page = layer});
      const int pages = 1 + static_cast<int>(random_() % 2);
      for (int i = 0; i < pages; ++i) {
        gradients[layer].push_back(Make(timeline));
      }
    }
    Address late = 0;
    for (Address layer : Range(0, kLayers)) {
      timeline.Add({.page = 100 + layer, .written = true});
      for (Address page : gradients[layer]) timeline.Add({.page = page});
      timeline.Add({.page = 200 + layer, .written = true});
      for (Address page : gradients[layer]) timeline.Add({.page = page});
      const Address root = Make(timeline), quotient = Make(timeline);
      timeline.Add({.page = root});
      Free(timeline, root);
      if (late != 0) Free(timeline, late);
      timeline.Add({.page = layer, .written = true});
      timeline.Add({.page = quotient});
      late = quotient;
    }
    Free(timeline, late);
    for (const auto& pages : gradients) {
      for (Address page : pages) Free(timeline, page);
    }
  }
  static constexpr Address kLayers = 40;

 private:
  Address Make(Timeline& timeline) {
    const std::size_t at = random_() % free_.size();
    const Address page = free_[at];
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(at));
    timeline.Add({.page = page, .written = true, .made = true});
    timeline.Add({.page = page, .written = true});
    return page;
  }
  void Free(Timeline& timeline, Address page) {
    timeline.Add({.page = page, .freed = true});
    free_.push_back(page);
  }

  std::mt19937 random_{1};
  std::vector<Address> free_ = Range(1000, 1090);
};

TEST(TimelinePassing, UsesOfPassingPagesDoNotMoveThePosition) {
  Timeline timeline;
  Training training;
  for (int step = 0; step < 6; ++step) training.Step(timeline);
  const std::uint64_t jumps = timeline.jumps();
  for (int step = 6; step < 16; ++step) {
    training.Step(timeline);
    ASSERT_TRUE(timeline.InStep()) << step;
    EXPECT_EQ(timeline.StableLength(), timeline.Length()) << step;
    // Before it come at most the frees of the step before.
    EXPECT_LE(timeline.Distance(0), 2 * Training::kLayers + 2);
    EXPECT_EQ(timeline.Distance(1), timeline.Distance(0) + 1);
    EXPECT_EQ(timeline.Distance(39), timeline.Distance(0) + 39);
  }
  EXPECT_EQ(timeline.jumps(), jumps);
}

TEST(TimelinePassing, ModelsOfOtherLengthsAtTheSameAddressesAreFollowed) {
  Timeline timeline;
  for (const Address pages : {100, 70, 130, 90, 70}) {
    const auto model = Range(1, 1 + pages);
    for (Address page : model) timeline.Add({.page = page, .made = true});
    for (int pass = 0; pass < 200; ++pass) {
      for (Address page : model) {
        if (pass >= 6) {
          ASSERT_TRUE(timeline.HasFuture());
          ASSERT_EQ(timeline.Expected(0).page, page) << pages << " " << pass;
        }
        timeline.Add({.page = page});
      }
    }
    EXPECT_NE(timeline.StableLength(), 0u);
    EXPECT_EQ(timeline.StableLength() % pages, 0u) << "whole passes";
    for (Address page : model) timeline.Add({.page = page, .freed = true});
  }
}

TEST(TimelinePassing, PageThatWasMadeAgainAndStaysIsFollowed) {
  // Parameters of a second model, at addresses that temporaries had.
  Timeline timeline;
  for (int life = 0; life < 2; ++life) {
    for (Address page : Range(1, 41))
      timeline.Add({.page = page, .made = true});
    AddAll(timeline, Range(1, 41));
    for (Address page : Range(1, 41)) {
      timeline.Add({.page = page, .freed = true});
    }
  }
  for (Address page : Range(1, 41)) timeline.Add({.page = page, .made = true});
  for (int turn = 0; turn < 30; ++turn) AddAll(timeline, Range(1, 41));
  EXPECT_TRUE(timeline.InStep());
  EXPECT_EQ(timeline.StableLength(), 40u);
  AddAll(timeline, {1});
  EXPECT_EQ(timeline.Distance(11), 9u);
}

}  // namespace
}  // namespace stratalloc
