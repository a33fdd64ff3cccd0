// SPDX-License-Identifier: Apache-2.0
// Which account a charge finds, and how seldom accounting is asked for it.
#include "allocator/blocks/recent_accounts.h"

#include <gtest/gtest.h>

#include <list>
#include <utility>
#include <vector>

namespace stratalloc {
namespace {

constexpr DeviceIndex kDevice{3};

// An account for each charge, and what was asked for.
class AskedAccounts final : public ChargeAccounts {
 public:
  ChargeAccount& Of(DeviceIndex device, Charge charge) override {
    asked.emplace_back(device, charge);
    for (auto& [paid_by, account] : accounts) {
      if (paid_by == charge) return account;
    }
    accounts.emplace_back();
    accounts.back().first = charge;
    return accounts.back().second;
  }
  void ResetPeaks(DeviceIndex device) override { reset.push_back(device); }

  std::vector<std::pair<DeviceIndex, Charge>> asked;
  std::list<std::pair<Charge, ChargeAccount>> accounts;
  std::vector<DeviceIndex> reset;
};

class RecentAccountsTest : public testing::Test {
 protected:
  RecentAccountsTest() { recent_.Use(&accounts_); }

  AskedAccounts accounts_;
  RecentAccounts recent_{kDevice};
};

TEST_F(RecentAccountsTest, AccountingIsAskedOnceForEachCharge) {
  const Charge weights{ScopeId{7}, Category::kParameter};
  const Charge states{ScopeId{7}, Category::kOptimizerState};
  ChargeAccount* const of_weights = recent_.Of(weights);
  ChargeAccount* const of_states = recent_.Of(states);
  EXPECT_NE(of_weights, of_states);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(recent_.Of(weights), of_weights);
    EXPECT_EQ(recent_.Of(states), of_states);
  }
  EXPECT_EQ(accounts_.asked.size(), 2u);
}

// There are more charges than are remembered.
TEST_F(RecentAccountsTest, EveryChargeFindsItsOwn) {
  std::vector<std::pair<Charge, ChargeAccount*>> found;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t scope = 0; scope < 200; ++scope) {
      const Charge charge{ScopeId{scope}, Category::kGradient};
      found.emplace_back(charge, recent_.Of(charge));
    }
  }
  for (const auto& [charge, account] : found) {
    EXPECT_EQ(account, &accounts_.Of(kDevice, charge)) << Raw(charge.scope);
  }
}

// What an empty place says is the charge of nobody.
TEST_F(RecentAccountsTest, TheChargeOfNobodyHasAnAccountToo) {
  ChargeAccount* const nobodys = recent_.Of({});
  ASSERT_NE(nobodys, nullptr);
  EXPECT_EQ(recent_.Of({}), nobodys);
  EXPECT_EQ(accounts_.asked.size(), 1u);
}

TEST_F(RecentAccountsTest, TheAccountsAreOfItsDevice) {
  recent_.Of({ScopeId{1}, Category::kActivation});
  ASSERT_EQ(accounts_.asked.size(), 1u);
  EXPECT_EQ(accounts_.asked[0].first, kDevice);
  recent_.ResetPeaks();
  EXPECT_EQ(accounts_.reset, std::vector<DeviceIndex>{kDevice});
}

TEST(RecentAccounts, WhereNobodyKeepsAnyThereIsNone) {
  RecentAccounts recent(kDevice);
  EXPECT_EQ(recent.Of({ScopeId{1}, Category::kParameter}), nullptr);
  recent.ResetPeaks();
  recent.Use(nullptr);
  EXPECT_EQ(recent.Of({}), nullptr);
}

}  // namespace
}  // namespace stratalloc
