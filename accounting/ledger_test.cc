// SPDX-License-Identifier: Apache-2.0
#include "accounting/ledger.h"

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "accounting/scope_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr DeviceIndex kGpu{0};
constexpr DeviceIndex kOtherGpu{1};
constexpr Charge kWeights{static_cast<ScopeId>(1), Category::kParameter};
constexpr Charge kGradients{static_cast<ScopeId>(1), Category::kGradient};
constexpr Charge kNobody{};

class LedgerTest : public testing::Test {
 protected:
  LedgerRow Row(Charge charge, DeviceIndex device = kGpu) {
    for (const LedgerRow& row : ledger_.Rows()) {
      if (row.device == device && row.charge == charge) return row;
    }
    ADD_FAILURE() << "no such row";
    return {};
  }
  void ExpectSound() {
    const Status status = ledger_.CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  Bytes On(const LedgerRow& row, TierId tier) {
    return row.tier_bytes[static_cast<std::size_t>(tier)];
  }

  Ledger ledger_;
};

TEST_F(LedgerTest, ChargesAndCreditsTheSameRow) {
  ledger_.OnAllocate(kGpu, kWeights, 512);
  ledger_.OnAllocate(kGpu, kWeights, 1024);
  ledger_.OnFree(kGpu, kWeights, 512);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 1024u);
  EXPECT_EQ(row.allocated, 1536u);
  EXPECT_EQ(row.freed, 512u);
  EXPECT_EQ(On(row, TierId::kDevice), 1024u);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 1024u);
  EXPECT_EQ(ledger_.LiveBytes(kOtherGpu), 0u);
  ExpectSound();
}

TEST_F(LedgerTest, CategoriesScopesAndDevicesAreApart) {
  ledger_.OnAllocate(kGpu, kWeights, 1);
  ledger_.OnAllocate(kGpu, kGradients, 2);
  ledger_.OnAllocate(kGpu, kNobody, 4);
  ledger_.OnAllocate(kOtherGpu, kWeights, 8);
  EXPECT_EQ(Row(kWeights).live, 1u);
  EXPECT_EQ(Row(kGradients).live, 2u);
  EXPECT_EQ(Row(kNobody).live, 4u);
  EXPECT_EQ(Row(kWeights, kOtherGpu).live, 8u);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 7u);
  EXPECT_EQ(ledger_.LiveBytes(kOtherGpu), 8u);
  ExpectSound();
}

TEST_F(LedgerTest, RowsAreOrdered) {
  ledger_.OnAllocate(kOtherGpu, kNobody, 1);
  ledger_.OnAllocate(kGpu, kGradients, 1);
  ledger_.OnAllocate(kGpu, kWeights, 1);
  ledger_.OnAllocate(kGpu, kNobody, 1);
  const std::vector<LedgerRow> rows = ledger_.Rows();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].charge, kNobody);
  EXPECT_EQ(rows[1].charge, kWeights);
  EXPECT_EQ(rows[2].charge, kGradients);
  EXPECT_EQ(rows[3].device, kOtherGpu);
}

TEST_F(LedgerTest, PeakFollowsLiveUpOnly) {
  ledger_.OnAllocate(kGpu, kWeights, 100);
  ledger_.OnAllocate(kGpu, kWeights, 50);
  ledger_.OnFree(kGpu, kWeights, 150);
  ledger_.OnAllocate(kGpu, kWeights, 20);
  EXPECT_EQ(Row(kWeights).peak, 150u);
  ledger_.ResetPeaks(kOtherGpu);
  EXPECT_EQ(Row(kWeights).peak, 150u);
  ledger_.ResetPeaks(kGpu);
  EXPECT_EQ(Row(kWeights).peak, 20u);
  ExpectSound();
}

TEST_F(LedgerTest, MovesCountTrafficAndKeepLive) {
  ledger_.OnAllocate(kGpu, kWeights, 100);
  ledger_.OnMove(kGpu, kWeights, TierId::kDevice, TierId::kHost, 60, true);
  ledger_.OnMove(kGpu, kWeights, TierId::kHost, TierId::kDisk, 40, true);
  LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 100u);
  EXPECT_EQ(row.peak, 100u);
  EXPECT_EQ(On(row, TierId::kDevice), 40u);
  EXPECT_EQ(On(row, TierId::kHost), 20u);
  EXPECT_EQ(On(row, TierId::kDisk), 40u);
  EXPECT_EQ(row.evicted_bytes, 60u);
  EXPECT_EQ(row.to_disk_bytes, 40u);
  EXPECT_EQ(row.restored_bytes, 0u);
  ExpectSound();

  ledger_.OnMove(kGpu, kWeights, TierId::kDisk, TierId::kDevice, 40, true);
  ledger_.OnMove(kGpu, kWeights, TierId::kHost, TierId::kDevice, 20, true);
  row = Row(kWeights);
  EXPECT_EQ(On(row, TierId::kDevice), 100u);
  EXPECT_EQ(row.restored_bytes, 60u);
  EXPECT_EQ(row.from_disk_bytes, 40u);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 100u);
  ExpectSound();
}

TEST_F(LedgerTest, DeviceStraightToDiskIsEvictedAndWritten) {
  ledger_.OnAllocate(kGpu, kWeights, 8);
  ledger_.OnMove(kGpu, kWeights, TierId::kDevice, TierId::kDisk, 8, true);
  ledger_.OnMove(kGpu, kWeights, TierId::kDisk, TierId::kHost, 8, true);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.evicted_bytes, 8u);
  EXPECT_EQ(row.to_disk_bytes, 8u);
  EXPECT_EQ(row.from_disk_bytes, 8u);
  EXPECT_EQ(row.restored_bytes, 0u);
}

TEST_F(LedgerTest, FreeOfEvictedBytesIsNoTraffic) {
  ledger_.OnAllocate(kGpu, kWeights, 100);
  ledger_.OnMove(kGpu, kWeights, TierId::kDevice, TierId::kHost, 100, true);
  ledger_.OnMove(kGpu, kWeights, TierId::kHost, TierId::kDevice, 100, false);
  ledger_.OnFree(kGpu, kWeights, 100);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 0u);
  EXPECT_EQ(row.evicted_bytes, 100u);
  EXPECT_EQ(row.restored_bytes, 0u);
  for (const Bytes bytes : row.tier_bytes) EXPECT_EQ(bytes, 0u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelMovesTheChargeAndRaisesTheNewPeak) {
  ledger_.OnAllocate(kGpu, kNobody, 100);
  ledger_.OnAllocate(kGpu, kWeights, 10);
  ledger_.OnRelabel(kGpu, kNobody, kWeights, 100);
  EXPECT_EQ(Row(kNobody).live, 0u);
  EXPECT_EQ(Row(kNobody).peak, 100u);
  EXPECT_EQ(Row(kNobody).relabelled, -100);
  EXPECT_EQ(Row(kWeights).live, 110u);
  EXPECT_EQ(Row(kWeights).peak, 110u);
  EXPECT_EQ(Row(kWeights).relabelled, 100);
  EXPECT_EQ(Row(kWeights).allocated, 10u);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 110u);
  ExpectSound();
  ledger_.OnFree(kGpu, kWeights, 110);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 0u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelToTheSameChargeChangesNothing) {
  ledger_.OnAllocate(kGpu, kWeights, 10);
  ledger_.OnRelabel(kGpu, kWeights, kWeights, 10);
  EXPECT_EQ(Row(kWeights).relabelled, 0);
  EXPECT_EQ(Row(kWeights).live, 10u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelOfEvictedBytesKeepsTheirTier) {
  ledger_.OnAllocate(kGpu, kNobody, 64);
  ledger_.OnMove(kGpu, kNobody, TierId::kDevice, TierId::kDisk, 48, true);
  ledger_.OnMove(kGpu, kNobody, TierId::kDisk, TierId::kDevice, 48, false);
  ledger_.OnRelabel(kGpu, kNobody, kWeights, 64);
  ledger_.OnMove(kGpu, kWeights, TierId::kDevice, TierId::kDisk, 48, false);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(On(row, TierId::kDisk), 48u);
  EXPECT_EQ(On(row, TierId::kDevice), 16u);
  EXPECT_EQ(row.to_disk_bytes, 0u);
  EXPECT_EQ(Row(kNobody).to_disk_bytes, 48u);
  ExpectSound();
}

TEST_F(LedgerTest, StallsBelongToTheScopesParameterRow) {
  ledger_.OnStall(kGpu, kWeights.scope, 5);
  ledger_.OnAllocate(kGpu, kWeights, 1);
  ledger_.OnStall(kGpu, kWeights.scope, 7);
  ledger_.OnStall(kGpu, kWeights.scope, 9);
  EXPECT_EQ(Row(kWeights).stalls, 2u);
  EXPECT_EQ(Row(kWeights).stall_ns, 16u);
  const LedgerRow unknown = Row({kWeights.scope, Category::kUnknown});
  EXPECT_EQ(unknown.stalls, 1u);
  EXPECT_EQ(unknown.stall_ns, 5u);
  ExpectSound();
}

TEST_F(LedgerTest, DoubleFreeIsClampedAndReported) {
  const ScopeId scope = InternScope("Model.twice");
  ledger_.OnAllocate(kGpu, {scope, Category::kBuffer}, 64);
  ledger_.OnFree(kGpu, {scope, Category::kBuffer}, 64);
  ledger_.OnFree(kGpu, {scope, Category::kBuffer}, 64);
  EXPECT_EQ(Row({scope, Category::kBuffer}).live, 0u);
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 0u);
  const Status status = ledger_.CheckInvariants();
  ASSERT_FALSE(status.has_value());
  EXPECT_THAT(status.error().message, HasSubstr("free of 64 bytes"));
  EXPECT_THAT(status.error().message, HasSubstr("buffer"));
}

TEST_F(LedgerTest, FreeOfEvictedBytesWithoutTheMoveIsReported) {
  ledger_.OnAllocate(kGpu, kWeights, 64);
  ledger_.OnMove(kGpu, kWeights, TierId::kDevice, TierId::kHost, 64, true);
  ledger_.OnFree(kGpu, kWeights, 64);
  EXPECT_FALSE(ledger_.CheckInvariants().has_value());
}

TEST_F(LedgerTest, MoveOfBytesThatAreNotThereIsReported) {
  ledger_.OnAllocate(kGpu, kWeights, 64);
  ledger_.OnMove(kGpu, kWeights, TierId::kHost, TierId::kDevice, 1, true);
  const Status status = ledger_.CheckInvariants();
  ASSERT_FALSE(status.has_value());
  EXPECT_THAT(status.error().message, HasSubstr("move of 1 bytes"));
  ledger_.ResetForTesting();
  ExpectSound();
  EXPECT_TRUE(ledger_.Rows().empty());
}

// A thousand rows: references to rows survive the growth of both tables.
TEST_F(LedgerTest, ManyScopesStayApart) {
  constexpr std::uint32_t kScopes = 1000;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kScopes; ++i) {
      ledger_.OnAllocate(kGpu, {static_cast<ScopeId>(i), Category::kActivation},
                         i + 1);
    }
  }
  const std::vector<LedgerRow> rows = ledger_.Rows();
  ASSERT_EQ(rows.size(), kScopes);
  for (std::uint32_t i = 0; i < kScopes; ++i) {
    EXPECT_EQ(rows[i].live, 2u * (i + 1));
  }
  EXPECT_EQ(ledger_.LiveBytes(kGpu), Bytes{kScopes} * (kScopes + 1));
  ExpectSound();
}

// Each thread plays a seeded life of blocks on shared rows; whatever the
// interleaving, everything freed leaves zero and the identities hold.
TEST_F(LedgerTest, ThreadsOnSharedRowsAddUp) {
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([this, seed] {
      struct Block {
        Charge charge;
        Bytes bytes;
        TierId tier;
      };
      std::mt19937 random(seed);
      std::vector<Block> blocks;
      const auto any_charge = [&random] {
        return Charge{static_cast<ScopeId>(random() % 5),
                      static_cast<Category>(random() % kCategories)};
      };
      const auto free_one = [&](std::size_t i) {
        const Block block = blocks[i];
        ledger_.OnMove(kGpu, block.charge, block.tier, TierId::kDevice,
                       block.bytes, false);
        ledger_.OnFree(kGpu, block.charge, block.bytes);
        blocks[i] = blocks.back();
        blocks.pop_back();
      };
      for (int step = 0; step < 2000; ++step) {
        const unsigned what = random() % 4;
        if (what == 0 || blocks.empty()) {
          blocks.push_back(
              {any_charge(), 512 * (1 + random() % 64), TierId::kDevice});
          ledger_.OnAllocate(kGpu, blocks.back().charge, blocks.back().bytes);
          continue;
        }
        const std::size_t i = random() % blocks.size();
        if (what == 1) {
          free_one(i);
        } else if (what == 2) {
          const auto to = static_cast<TierId>(random() % kTiers);
          ledger_.OnMove(kGpu, blocks[i].charge, blocks[i].tier, to,
                         blocks[i].bytes, true);
          blocks[i].tier = to;
        } else if (blocks[i].tier == TierId::kDevice) {
          const Charge to = any_charge();
          ledger_.OnRelabel(kGpu, blocks[i].charge, to, blocks[i].bytes);
          blocks[i].charge = to;
        }
      }
      while (!blocks.empty()) free_one(0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSound();
  EXPECT_EQ(ledger_.LiveBytes(kGpu), 0u);
  for (const LedgerRow& row : ledger_.Rows()) EXPECT_EQ(row.live, 0u);
}

}  // namespace
}  // namespace stratalloc
