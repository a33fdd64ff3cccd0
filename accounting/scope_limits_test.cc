// SPDX-License-Identifier: Apache-2.0
#include "accounting/scope_limits.h"

#include <string>
#include <vector>

#include "accounting/ledger.h"
#include "accounting/scope_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr DeviceIndex kGpu{0}, kOtherGpu{1};
constexpr Bytes kMiB = 1 << 20;

class ScopeLimitsTest : public testing::Test {
 protected:
  ChargeAccount& Of(const char* path, Category category = Category::kActivation,
                    DeviceIndex device = kGpu) {
    return ledger_.Of(device, {InternScope(path), category});
  }
  // "" if it may have them.
  std::string Ask(const char* path, Bytes bytes, DeviceIndex device = kGpu) {
    const ChargeAccount& account = Of(path, Category::kActivation, device);
    if (!account.scope->limited) return "";
    const Status status = ledger_.Admit(device, account, bytes);
    if (status) return "";
    EXPECT_EQ(status.error().code, ErrorCode::kLimited);
    return status.error().message;
  }

  Ledger ledger_;
};

TEST(IsBelow, ByWholeNames) {
  EXPECT_TRUE(IsBelow("Net", "Net"));
  EXPECT_TRUE(IsBelow("Net.head", "Net"));
  EXPECT_TRUE(IsBelow("Net/loss", "Net"));
  EXPECT_FALSE(IsBelow("Net2", "Net"));
  EXPECT_FALSE(IsBelow("Net#2", "Net"));
  EXPECT_FALSE(IsBelow("Net", "Net.head"));
}

TEST_F(ScopeLimitsTest, AllCategoriesAndAllThatIsBelowAddUp) {
  Of("A").Allocate(kMiB);
  Of("A.x", Category::kParameter).Allocate(kMiB);
  ledger_.Limit(kGpu, "A", 4 * kMiB);
  EXPECT_EQ(Ask("A.x", 2 * kMiB), "");
  EXPECT_NE(Ask("A.x", 2 * kMiB + 1), "");
  // Scopes that come later are below it as well.
  Of("A.y/inner").Allocate(kMiB);
  EXPECT_EQ(Ask("A.y", kMiB), "");
  EXPECT_NE(Ask("A.y", kMiB + 1), "");
  EXPECT_EQ(Ask("A2", 100 * kMiB), "");
  EXPECT_EQ(Ask("A", 100 * kMiB, kOtherGpu), "");
}

TEST_F(ScopeLimitsTest, WhatIsFreedMayBeHadAgainWhatIsEvictedMayNot) {
  ledger_.Limit(kGpu, "B", kMiB);
  Of("B").Allocate(kMiB);
  EXPECT_NE(Ask("B", 1), "");
  Of("B").Move(kMiB, TierId::kDevice, TierId::kHost, true);
  EXPECT_NE(Ask("B", 1), "");
  Of("B").Move(kMiB, TierId::kHost, TierId::kDevice, true);
  Of("B").Free(kMiB);
  EXPECT_EQ(Ask("B", kMiB), "");
}

TEST_F(ScopeLimitsTest, TheInnerAndTheOuterLimitBothHold) {
  ledger_.Limit(kGpu, "C", 3 * kMiB);
  ledger_.Limit(kGpu, "C.x", kMiB);
  EXPECT_THAT(Ask("C.x", 2 * kMiB),
              HasSubstr("but C.x is limited to 1024.00 KiB"));
  Of("C").Allocate(3 * kMiB);
  EXPECT_THAT(Ask("C.x", kMiB), HasSubstr("but C is limited to 3.00 MiB"));
  EXPECT_TRUE(ledger_.Unlimit(kGpu, "C"));
  EXPECT_EQ(Ask("C.x", kMiB), "");
  EXPECT_EQ(Ask("C", 100 * kMiB), "");
  EXPECT_NE(Ask("C.x", 2 * kMiB), "");
}

TEST_F(ScopeLimitsTest, ALaterLimitReplacesAnEarlierOne) {
  ledger_.Limit(kGpu, "D", kMiB);
  ledger_.Limit(kGpu, "D", 2 * kMiB);
  EXPECT_EQ(Ask("D", 2 * kMiB), "");
  ASSERT_EQ(ledger_.Limits().size(), 1u);
  EXPECT_EQ(ledger_.Limits()[0].bytes, 2 * kMiB);
  EXPECT_TRUE(ledger_.HasLimits(kGpu));
  EXPECT_FALSE(ledger_.HasLimits(kOtherGpu));
  EXPECT_TRUE(ledger_.Unlimit(kGpu, "D"));
  EXPECT_FALSE(ledger_.Unlimit(kGpu, "D"));
  EXPECT_FALSE(ledger_.HasLimits(kGpu));
  EXPECT_FALSE(Of("D").scope->limited);
}

// Whatever is charged below a limit, before and after it came, in scopes old
// and new, is in the sums of all limits above; none is left of one that went.
TEST_F(ScopeLimitsTest, SumsFollowEveryCharge) {
  Of("S.x.a").Allocate(5);
  Of("S.y").Allocate(7);
  ledger_.Limit(kGpu, "S.x", 100);
  ledger_.Limit(kGpu, "S", 100);
  ledger_.Limit(kOtherGpu, "S", 100);
  Of("S.x.b").Allocate(11);
  Of("S.x.a").Give(2, TierId::kDevice, Of("S.y"));
  Of("S.y").Give(3, TierId::kDevice, Of("T"));
  Of("S.x.b").FreeBytes(1, TierId::kDevice);
  const auto owned = [&] {
    std::vector<Bytes> sums;
    for (const auto& limit : ledger_.Limits()) sums.push_back(limit.owned);
    return sums;
  };
  EXPECT_EQ(owned(), (std::vector<Bytes>{13, 19, 0}));
  EXPECT_TRUE(ledger_.CheckInvariants().has_value());
  // The one in the middle of the chain goes, and another comes.
  ledger_.Limit(kGpu, "S.x.a", 100);
  EXPECT_TRUE(ledger_.Unlimit(kGpu, "S.x"));
  Of("S.x.a").Allocate(20);
  Of("S.x.b").Allocate(30);
  EXPECT_EQ(owned(), (std::vector<Bytes>{69, 0, 23}));
  EXPECT_NE(Ask("S.x.a", 32), "") << "32 of 31 left in S";
  EXPECT_TRUE(ledger_.CheckInvariants().has_value());
  Of("S.x.b").scope->limited.load()->owned = 68;
  const Status wrong = ledger_.CheckInvariants();
  ASSERT_FALSE(wrong.has_value());
  EXPECT_THAT(wrong.error().message, HasSubstr("what its limit counts = 68"));
  Of("S.x.b").scope->limited.load()->owned = 69;
}

// It owned more when the limit was set.
TEST_F(ScopeLimitsTest, OverItAlreadyNothingMoreIsHad) {
  Of("E").Allocate(2 * kMiB);
  ledger_.Limit(kGpu, "E", kMiB);
  EXPECT_NE(Ask("E", 1), "");
  EXPECT_NE(Ask("E", ~Bytes{0}), "");
}

TEST_F(ScopeLimitsTest, TheRefusalNamesScopeLimitAndLargestOwners) {
  ledger_.Limit(kGpu, "F", 8 * kMiB);
  Of("F.a").Allocate(kMiB);
  Of("F.b").Allocate(4 * kMiB);
  Of("F.c").Allocate(2 * kMiB);
  Of("F.d").Allocate(kMiB / 2);
  EXPECT_EQ(
      Ask("F.c", kMiB),
      "CUDA out of memory. Tried to allocate 1024.00 KiB in F.c on GPU 0, but "
      "F "
      "is limited to 8.00 MiB (stratalloc.limit) and owns 7.50 MiB. Of these, "
      "F.b owns 4.00 MiB, F.c 2.00 MiB, F.a 1024.00 KiB. Raise the limit by "
      "512.00 KiB, or let F hold less.");
  // Two digits are never too few.
  EXPECT_THAT(Ask("F.c", kMiB + kMiB / 2 + 1),
              HasSubstr("Raise the limit by 1.01 MiB, "));
  ledger_.Limit(kGpu, "G", 0);
  EXPECT_EQ(
      Ask("G", kMiB),
      "CUDA out of memory. Tried to allocate 1024.00 KiB in G on GPU 0, but "
      "G is limited to 0 bytes (stratalloc.limit) and owns 0 bytes. Raise "
      "the limit by 1024.00 KiB, or let G hold less.");
}

}  // namespace
}  // namespace stratalloc
