// SPDX-License-Identifier: Apache-2.0
#include "allocator/state/frame_accounts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0};

TEST(FrameAccounts, NumbersAreApartUntilTheyAreGivenBack) {
  FrameAccounts accounts;
  std::set<FrameId> ids;
  // More than a chunk: accounts stay where they are.
  FrameAccount* first = nullptr;
  for (int i = 0; i < 5000; ++i) {
    const FrameId id = accounts.Begin(kGpu, ScopeId{7});
    ASSERT_NE(id, 0u);
    ASSERT_TRUE(ids.insert(id).second) << id;
    if (first == nullptr) first = &accounts.at(id);
  }
  EXPECT_EQ(&accounts.at(*ids.begin()), first);
  EXPECT_EQ(first->scope, ScopeId{7});
  accounts.Recycle(*ids.begin());
  EXPECT_EQ(accounts.Begin(DeviceIndex{1}, ScopeId{8}), *ids.begin());
  EXPECT_EQ(first->device, DeviceIndex{1});
  EXPECT_EQ(first->scope, ScopeId{8});
}

TEST(FrameAccounts, AnOpenFramesChargeIsTemporaryAndAnEndedOnesIsNot) {
  FrameAccounts accounts;
  Charge charge{ScopeId{7}, Category::kTemporary};
  charge.frame = accounts.Begin(kGpu, charge.scope);
  const Charge open{ScopeId{7}, Category::kTemporary};
  const Charge ended{ScopeId{7}, Category::kActivation};
  EXPECT_EQ(accounts.Resolved(charge), open);
  accounts.at(charge.frame).ended = true;
  EXPECT_EQ(accounts.Resolved(charge), ended);
  EXPECT_EQ(accounts.Resolved(open), open) << "of no frame";
  accounts.Recycle(charge.frame);
  ASSERT_EQ(accounts.Begin(kGpu, ScopeId{7}), charge.frame);
  EXPECT_EQ(accounts.Resolved(charge), open) << "a new one";
}

TEST(FrameAccounts, ChildOfAForkBeginsNoAccount) {
  FrameAccounts accounts;
  ASSERT_NE(accounts.Begin(kGpu, ScopeId{7}), 0u);
  EXPECT_EXIT(
      {
        FrameAccounts::AbandonAfterFork();
        _exit(accounts.Begin(kGpu, ScopeId{7}) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stratalloc
