// SPDX-License-Identifier: Apache-2.0
// The engine with more than one thread: who is inside an operator while
// something leaves, operators that wait for each other, the background thread.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

using EngineThreadsTest = EngineTest;

TEST_F(EngineThreadsTest, WhatAnOperatorUsesDoesNotLeave) {
  Open({});
  const auto layers = Layers(2);
  {
    Busy busy(rig_->engine(), {{layers[0], kHandle, false}});
    EXPECT_EQ(Evict(), kHandle) << "the other one, and nobody was waited for";
    EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
    EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

// In `.item()`, or at the first meeting of NCCL's ranks: inside an operator for
// as long as it takes, perhaps until somebody else gets on.
TEST_F(EngineThreadsTest, AnOperatorThatBlocksHoldsNobodyUp) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  Busy busy(rig_->engine(), {{layers[0], 8, false}});
  ExpectLayers(layers);
  const Address more = Malloc(kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  Free(more);
  busy.Leave();
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, TwoOperatorsThatDoNotFitTogetherTakeTurns) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  const auto Three = [&](int first) {
    std::vector<Access> three;
    for (int i = first; i < first + 3; ++i) {
      three.push_back({layers[i], kHandle, false});
    }
    return three;
  };
  Busy busy(rig_->engine(), Three(0));
  std::atomic<bool> done{false};
  std::thread other([&] {
    Status status = rig_->Operate(kDefaultStream, Three(3), [] {});
    EXPECT_TRUE(status.has_value()) << status.error().message;
    done = true;
  });
  // Refused at least once, and waiting with nothing pinned.
  ASSERT_TRUE(Eventually([&] {
    return rig_->engine().IsCrowded() &&
           rig_->UseOf(layers[5]).pins.load() == 0;
  }));
  EXPECT_FALSE(done);
  busy.Leave();
  other.join();
  EXPECT_TRUE(done);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, ARefusedWriterStillMakesItsOperandsDirty) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(5);
  const Address a = layers[0];
  Evict();
  Busy busy(rig_->engine(),
            {{layers[3], kHandle, false}, {layers[4], kHandle, false}});
  ExpectReads(a, kHandle, 1);  // resident, clean
  // Needs three of four handles, of which two are in use.
  std::thread writer([&] {
    Status status = rig_->Operate(kDefaultStream,
                                  {{a, kHandle, true},
                                   {layers[1], kHandle, false},
                                   {layers[2], kHandle, false}},
                                  [&] { Rig::Fill(a, kHandle, 50); });
    EXPECT_TRUE(status.has_value()) << status.error().message;
  });
  // While it waits, what it will write leaves once more.
  ASSERT_TRUE(Eventually([&] { return rig_->engine().IsCrowded(); }));
  std::thread evictor([&] {
    // The writer may hold its pins for a moment still.
    while (EvictOnly(a, kHandle) == 0) {
    }
  });
  EXPECT_TRUE(
      Eventually([&] { return rig_->StateOf(a) != HandleState::kResident; }));
  busy.Leave();
  evictor.join();
  writer.join();
  Evict();
  EXPECT_EQ(Counters().dirty_by_checksum, 0u);
  ExpectReads(a, kHandle, 50);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, TheMoverThreadRestoresWhatWasUsedNextBefore) {
  Rig::Options options;
  options.background = true;
  Open(options);
  const auto layers = Layers(3);
  const Address other = Malloc(512);
  Evict();  // from here on the planner learns
  const auto Pass = [&](bool wait) {
    for (int i = 0; i < 3; ++i) {
      // Nothing comes back before the program has used something again.
      if (wait && i > 0) {
        EXPECT_TRUE(Eventually([&] {
          return rig_->StateOf(layers[i]) != HandleState::kHost;
        })) << i;
      }
      ExpectReads(layers[i], kHandle, i + 1);
    }
    // Uses closer than kBurstOperators count as one.
    for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  };
  for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  Pass(false);
  Evict();
  const std::uint64_t before = Counters().planned_handles;
  Pass(true);
  EXPECT_GT(Counters().planned_handles, before);
  Free(other);
  FreeAll(layers);
}

// Operators of `threads` threads, each with `handles` handles of its own that
// it reads and writes, and a result that it allocates inside: all get on.
class Crowd {
 public:
  Crowd(Rig& rig, int threads, int handles, int rounds)
      : rig_(rig), handles_(handles), rounds_(rounds) {
    for (int t = 0; t < threads; ++t) {
      for (int i = 0; i < handles; ++i) {
        auto address = rig.Malloc(kHandle);
        EXPECT_TRUE(address.has_value()) << address.error().message;
        mine_.push_back(*address);
        EXPECT_TRUE(rig.Write(mine_.back(), kHandle, mine_.size()).has_value());
      }
    }
  }
  ~Crowd() {
    for (Address address : mine_) rig_.device().Free(address);
  }

  // `results`: handles that each operator allocates while it runs.
  void Run(int results) {
    std::vector<std::thread> threads;
    const int count = static_cast<int>(mine_.size()) / handles_;
    for (int t = 0; t < count; ++t) {
      threads.emplace_back([this, t, results] { RunOne(t, results); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
  }
  std::atomic<int> wrong{0};

 private:
  void RunOne(int thread, int results) {
    std::vector<Access> accesses;
    for (int i = 0; i < handles_; ++i) {
      accesses.push_back({mine_[thread * handles_ + i], kHandle, true});
    }
    for (int round = 0; round < rounds_; ++round) {
      std::vector<Address> made;
      Engine& engine = rig_.engine();
      if (Status status =
              engine.EnterOperator(kDefaultStream, "crowd", accesses);
          !status) {
        ++wrong;
        ADD_FAILURE() << status.error().message;
        return;
      }
      for (int i = 0; i < results; ++i) {
        auto address = rig_.Malloc(kHandle);
        if (address) {
          made.push_back(*address);
          continue;
        }
        ++wrong;
        ADD_FAILURE() << address.error().message;
      }
      // Whatever was waited for, what the operator uses is there.
      for (int i = 0; i < handles_; ++i) {
        const std::size_t at = thread * handles_ + i;
        if (!Rig::Holds(mine_[at], kHandle, at + 1)) ++wrong;
        Rig::Fill(mine_[at], kHandle, at + 1);
      }
      engine.LeaveOperator();
      for (Address address : made) rig_.device().Free(address);
    }
  }

  Rig& rig_;
  const int handles_, rounds_;
  std::vector<Address> mine_;
};

TEST_F(EngineThreadsTest, OperatorsThatFitAloneButNotTogetherAllRun) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.async = false;
  options.background = true;
  Open(options);
  Crowd crowd(*rig_, 2, 5, 50);  // 10 of 16 MiB each
  crowd.Run(0);
}

TEST_F(EngineThreadsTest, SoDoThoseThatAllocateInside) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.async = false;
  Open(options);
  Crowd crowd(*rig_, 2, 3, 50);
  crowd.Run(4);  // 14 of 16 MiB each
}

TEST_F(EngineThreadsTest, SoDoMany) {
  Rig::Options options;
  options.capacity = 32 * kMiB;
  options.host_budget = 256 * kMiB;
  options.async = false;
  options.background = true;
  Open(options);
  Crowd crowd(*rig_, 32, 3, 20);
  crowd.Run(2);
}

// The mover may be late: what was used before an eviction by name brings
// nothing back after it.
TEST_F(EngineThreadsTest, EvictionByNameEndsWhatWasToComeBack) {
  Rig::Options options;
  options.capacity = 64 * kMiB;
  options.background = true;
  Open(options);
  const auto layers = Layers(12);
  const Address clock = Malloc(kHandle);
  const auto step = [&] {
    for (std::uint32_t i = 0; i < 12; ++i) {
      ExpectReads(layers[i], kHandle, i + 1);
    }
    // Time goes by, or the next step's uses are of the same burst.
    for (std::uint32_t i = 0; i < 2 * kBurstOperators; ++i) {
      const Access other{clock, 512, false};
      ASSERT_TRUE(
          rig_->engine().EnterOperator(kDefaultStream, "other", {&other, 1}));
      rig_->engine().LeaveOperator();
    }
  };
  Evict();  // so that it learns
  for (int round = 0; round < 25; ++round) {
    step();
    // What the mover would bring back is evicted, and Evict() holds it up.
    for (std::size_t i = 0; i < 6; ++i) EvictOnly(layers[i], kHandle);
    Evict();
    const std::uint64_t restored = Counters().restored_handles;
    // Waits for a restore that is under way.
    for (int i = 0; i < 100; ++i) {
      std::this_thread::yield();
      ASSERT_EQ(Counters().restored_handles, restored) << "round " << round;
    }
  }
  ExpectLayers(layers);
  Free(clock);
  FreeAll(layers);
}

// An operator that fits beside nothing waits for the others' results to go, and
// then runs.
TEST_F(EngineThreadsTest, AMallocWaitsForWhatAnotherThreadIsAboutToFree) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.quiet_ns = 60'000'000'000;
  Open(options);
  const auto Transient = [&](Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  };
  std::atomic<bool> has{false};
  std::thread other([&] {
    rig_->engine().EnterOperator(kDefaultStream, "other", {});
    rig_->engine().LeaveOperator();
    const Address held = Transient(10 * kMiB);
    has = true;
    EXPECT_TRUE(Eventually([&] { return rig_->engine().IsCrowded(); }));
    Free(held);
  });
  ASSERT_TRUE(Eventually([&] { return has.load(); }));
  const Address mine = Transient(10 * kMiB);
  other.join();
  Free(mine);
}

// While one waits inside an operator, another fills the device with what never
// leaves, and keeps it.
TEST_F(EngineThreadsTest, AnOperatorWhoseRoomWasTakenForGoodIsToldSo) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.running_ns = 50'000'000;
  Open(options);
  const auto layers = Layers(3);
  const auto Transient = [&](Bytes bytes) {
    return Malloc(bytes, kDefaultStream, LifetimeClass::kTransient);
  };
  std::atomic<int> stage{0};
  std::vector<Address> theirs;
  std::thread other([&] {
    rig_->engine().EnterOperator(kDefaultStream, "other", {});
    rig_->engine().LeaveOperator();
    theirs.push_back(Transient(6 * kMiB));
    stage = 1;
    EXPECT_TRUE(Eventually([&] {
      rig_->engine().EnterOperator(kDefaultStream, "gets on", {});
      rig_->engine().LeaveOperator();
      return rig_->engine().IsCrowded();
    }));
    theirs.push_back(Transient(6 * kMiB));
  });
  ASSERT_TRUE(Eventually([&] { return stage.load() == 1; }));
  std::vector<Access> accesses;
  for (Address layer : layers) accesses.push_back({layer, kHandle, true});
  ASSERT_TRUE(rig_->engine()
                  .EnterOperator(kDefaultStream, "waits", accesses)
                  .has_value());
  auto refused = rig_->Malloc(8 * kMiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOusted);
  EXPECT_NE(refused.error().message.find("took the room"), std::string::npos)
      << refused.error().message;
  other.join();
  rig_->engine().LeaveOperator();
  for (Address address : theirs) Free(address);
  ExpectLayers(layers);
  FreeAll(layers);
}

// Between the malloc's last look and its wait another thread has freed enough,
// and nothing happens any more that would wake it.
TEST_F(EngineThreadsTest, WhatCameFreeJustBeforeTheWaitIsTaken) {
  class FreedMeanwhile final : public MemoryRequest {
   public:
    bool Take() override { return true; }
    Bytes Missing() override { return kHandle; }
    bool IsHopeless() override { return false; }
    void Fail(Error) override {}
  };
  Open({});
  const auto layers = Layers(1);
  FreedMeanwhile request;
  EXPECT_TRUE(rig_->engine().Reclaim(DeviceIndex{0}, request));
  EXPECT_EQ(Counters().evicted_handles, 0u);
  FreeAll(layers);
}

// 30 of 32 MiB, above every threshold, and it fits.
TEST_F(EngineThreadsTest, WhatFitsStays) {
  Rig::Options options;
  options.background = true;
  options.capacity = 32 * kMiB;
  Open(options);
  const auto layers = Layers(15);
  for (int pass = 0; pass < 20; ++pass) {
    ExpectLayers(layers);
    Free(Malloc(kHandle));
  }
  rig_->engine().StopBackground();
  EXPECT_EQ(Counters().evicted_handles, 0u);
  EXPECT_FALSE(rig_->engine().UnderPressure(DeviceIndex{0}));
  FreeAll(layers);
}

class PressureTest : public EngineTest {
 protected:
  // A tick per read; far enough apart to be uses of their own.
  void Read(Address address, std::uint64_t seed) {
    for (std::uint32_t i = 0; i <= kBurstOperators; ++i) {
      ExpectReads(tick_, 512, 77);
    }
    ExpectReads(address, kHandle, seed);
  }
  void OpenWith(bool under_pressure) {
    Rig::Options options;
    options.background = true;
    options.capacity = 32 * kMiB;
    options.under_pressure = under_pressure;
    Open(options);
    tick_ = Malloc(512);
    Write(tick_, 512, 77);
  }
  Bytes Allocated() {
    return static_cast<Bytes>(
        rig_->device().Stats().allocated_bytes.stats[0].current);
  }

  Address tick_ = 0;
};

TEST_F(PressureTest, WhatIsColdLeavesAboveTheThreshold) {
  OpenWith(true);
  const auto layers = Layers(14);  // 30 of 32 MiB
  const auto Pass = [&](int from) {
    for (int i = from; i < 14; ++i) Read(layers[i], i + 1);
  };
  for (int pass = 0; pass < 4; ++pass) Pass(0);
  EXPECT_EQ(Counters().evicted_handles, 0u) << "all of it is in the cycle";
  // The first five are called no more.
  EXPECT_TRUE(Eventually([&] {
    Pass(5);
    Free(Malloc(512));
    return Counters().evicted_handles >= 3;
  })) << Counters().evicted_handles;
  for (int i = 5; i < 14; ++i) {
    EXPECT_EQ(rig_->StateOf(layers[i]), HandleState::kResident) << i;
  }
  EXPECT_LE(Allocated(), 32 * kMiB * 70 / 100 + 2 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
  Free(tick_);
}

TEST_F(PressureTest, ThresholdsCountFromTheFirstRefusal) {
  OpenWith(false);
  const auto layers = Layers(14);
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 0; i < 14; ++i) Read(layers[i], i + 1);
  }
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 5; i < 14; ++i) Read(layers[i], i + 1);
  }
  EXPECT_FALSE(rig_->engine().UnderPressure(DeviceIndex{0}));
  EXPECT_EQ(Counters().evicted_handles, 0u);
  const Address large = Malloc(3 * kHandle);  // one handle too many
  EXPECT_TRUE(rig_->engine().UnderPressure(DeviceIndex{0}));
  EXPECT_GE(Counters().evicted_handles, 1u);
  EXPECT_TRUE(Eventually([&] {
    for (int i = 5; i < 14; ++i) Read(layers[i], i + 1);
    Free(Malloc(512));
    return Counters().evicted_handles >= 5;
  }));
  Free(large);
  FreeAll(layers);
  Free(tick_);
}

TEST_F(PressureTest, ALimitThatFallsBelowWhatIsInUseIsPressure) {
  OpenWith(false);
  const auto layers = Layers(14);
  rig_->device().SetFraction(0.95);
  EXPECT_FALSE(rig_->engine().UnderPressure(DeviceIndex{0}));
  rig_->device().SetFraction(0.5);
  EXPECT_TRUE(rig_->engine().UnderPressure(DeviceIndex{0}));
  rig_->device().SetFraction(1);
  FreeAll(layers);
  Free(tick_);
}

}  // namespace
}  // namespace stratalloc
