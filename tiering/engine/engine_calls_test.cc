// SPDX-License-Identifier: Apache-2.0
// Calls: what code that launches kernels of its own uses stays while it runs,
// and the operators inside it are outermost ones.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

class EngineCallsTest : public EngineTest {
 protected:
  Engine& engine() { return rig_->engine(); }
  void OpenCard(Bytes capacity) {
    Rig::Options options;
    options.capacity = capacity;
    Open(options);
  }
  Status Enter(const std::vector<Address>& operands) {
    std::vector<Access> accesses;
    for (Address address : operands) {
      accesses.push_back({address, kHandle, false});
    }
    STRATALLOC_RETURN_IF_ERROR(
        engine().EnterOperator(kDefaultStream, "call", accesses));
    engine().LeaveIntoCall();
    return {};
  }
  bool IsHere(Address address) {
    return rig_->StateOf(address) == HandleState::kResident;
  }
};

TEST_F(EngineCallsTest, OperandsStayAndOperatorsInsideDoNot) {
  Open({});
  const auto layers = Layers(3);
  Evict();
  ASSERT_TRUE(Enter({layers[0]}));
  EXPECT_EQ(OperatorThread::ThisThread().depth(), 0);
  ExpectReads(layers[1], kHandle, 2);  // an operator inside
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_TRUE(IsHere(layers[0]));
  ASSERT_TRUE(Enter({layers[2], layers[0]}));  // nested
  EXPECT_EQ(Evict(), 0u);
  engine().LeaveCall();
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_TRUE(IsHere(layers[0]));
  engine().LeaveCall();
  EXPECT_EQ(Evict(), kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineCallsTest, WhatItAllocatesStaysUntilTheOutermostReturns) {
  Open({});
  const auto layers = Layers(1);
  ASSERT_TRUE(Enter({layers[0]}));
  const Address outside = Malloc(kHandle);
  Address inside = 0, nested = 0;
  ASSERT_TRUE(engine().EnterOperator(kDefaultStream, "inner", {}));
  inside = Malloc(kHandle);
  engine().LeaveOperator();
  ASSERT_TRUE(Enter({}));
  nested = Malloc(kHandle);
  engine().LeaveCall();
  EXPECT_EQ(Evict(), 0u);
  engine().LeaveCall();
  EXPECT_EQ(Evict(), 4 * kHandle);
  ExpectLayers(layers);
  FreeAll({layers[0], outside, inside, nested});
}

TEST_F(EngineCallsTest, ARefusedCallHoldsNothing) {
  OpenCard(16 * kMiB);
  const auto layers = Layers(12);
  EXPECT_FALSE(Enter(layers));
  EXPECT_FALSE(OperatorThread::ThisThread().HoldsPins());
  Evict();
  for (Address layer : layers) EXPECT_FALSE(IsHere(layer));
  ExpectLayers(layers);
  FreeAll(layers);
}

// While it waits inside, what the call uses may leave, and is back afterwards:
// two calls that fit alone but not together take turns.
TEST_F(EngineCallsTest, TwoThatDoNotFitTogetherTakeTurns) {
  OpenCard(16 * kMiB);
  const auto layers = Layers(8);  // 16 MiB: the limit is a little less
  const std::vector<Address> mine(layers.begin(), layers.begin() + 4);
  const std::vector<Address> theirs(layers.begin() + 4, layers.end());
  std::atomic<int> inside{0};
  std::atomic<bool> failed{false};
  const auto work = [&](const std::vector<Address>& operands, int first) {
    for (int i = 0; i < 20; ++i) {
      if (!Enter(operands)) {
        failed = true;
        continue;
      }
      ++inside;
      // What it allocates needs the other's room.
      Result<Address> made = rig_->Malloc(2 * kHandle);
      for (std::size_t j = 0; j < operands.size(); ++j) {
        if (!IsHere(operands[j]) ||
            !Rig::Holds(operands[j], kHandle, first + j + 1)) {
          failed = true;
        }
      }
      if (made) {
        EXPECT_TRUE(rig_->device().Free(*made).has_value());
      } else {
        failed = true;
      }
      engine().LeaveCall();
    }
  };
  std::thread other([&] { work(theirs, 4); });
  work(mine, 0);
  other.join();
  EXPECT_FALSE(failed);
  EXPECT_EQ(inside, 40);
  EXPECT_GT(Counters().evicted_handles, 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

// A thread inside a call is not told to have no room while another's ends soon.
TEST_F(EngineCallsTest, OthersWaitForACallAsForAnOperator) {
  OpenCard(16 * kMiB);
  const auto layers = Layers(9);
  const std::vector<Address> half(layers.begin(), layers.begin() + 6);
  std::atomic<bool> entered{false}, leave{false};
  std::thread busy([&] {
    EXPECT_TRUE(Enter(half));
    entered = true;
    while (!leave) std::this_thread::yield();
    engine().LeaveCall();
  });
  while (!entered) std::this_thread::yield();
  std::thread later([&] {
    // Longer than a thread that nobody could help is given.
    const std::int64_t until = NowNs() + 500'000'000;
    while (NowNs() < until) std::this_thread::yield();
    leave = true;
  });
  const std::vector<Address> mine(layers.begin() + 3, layers.end());
  Status status = Enter(mine);
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_TRUE(leave);
  if (status) engine().LeaveCall();
  later.join();
  busy.join();
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
