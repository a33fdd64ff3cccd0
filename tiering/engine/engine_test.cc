// SPDX-License-Identifier: Apache-2.0
// The engine on the simulated device: bytes leave and return bit for bit, at
// the same address, in every way the state table allows.
#include "tiering/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "accounting/scope_table.h"
#include "tiering/engine/rig_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr Bytes kHandle = 2 * kMiB;

// Polls, because what it waits for is another thread's progress.
template <typename F>
bool Eventually(F&& happened) {
  for (int i = 0; i < 2'000'000; ++i) {
    if (happened()) return true;
    std::this_thread::yield();
  }
  return false;
}

// A thread inside an operator on `accesses`, until it is told to leave.
class Busy {
 public:
  Busy(Engine& engine, std::vector<Access> accesses)
      : thread_([this, &engine, accesses] {
          ok_ = engine.EnterOperator(kDefaultStream, "busy", accesses)
                    .has_value();
          inside_ = true;
          while (!leave_) std::this_thread::yield();
          if (ok_) engine.LeaveOperator();
        }) {
    while (!inside_) std::this_thread::yield();
    EXPECT_TRUE(ok_);
  }
  ~Busy() { Leave(); }
  void Leave() {
    leave_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> ok_{false}, inside_{false}, leave_{false};
  std::thread thread_;
};

class EngineTest : public testing::Test {
 protected:
  void Open(const Rig::Options& options) {
    auto rig = Rig::Make(options);
    ASSERT_TRUE(rig.has_value()) << rig.error().message;
    rig_ = std::move(*rig);
  }
  void TearDown() override {
    if (rig_ != nullptr) {
      EXPECT_EQ(rig_->Close(), "");
    }
  }
  Address Malloc(Bytes bytes, StreamId stream = kDefaultStream,
                 LifetimeClass lifetime = LifetimeClass::kPersistent) {
    auto address = rig_->Malloc(bytes, stream, lifetime);
    EXPECT_TRUE(address.has_value()) << address.error().message;
    return address ? *address : 0;
  }
  void Write(Address address, Bytes bytes, std::uint64_t seed) {
    Status status = rig_->Write(address, bytes, seed);
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  void ExpectReads(Address address, Bytes bytes, std::uint64_t seed) {
    Result<bool> reads = rig_->Reads(address, bytes, seed);
    ASSERT_TRUE(reads.has_value()) << reads.error().message;
    EXPECT_TRUE(*reads);
  }
  Bytes Evict() {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  Bytes Restore() {
    Result<Bytes> moved = rig_->engine().Restore(rig_->device(), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  void Free(Address address) {
    EXPECT_TRUE(rig_->device().Free(address).has_value());
  }

  Bytes EvictOnly(Address address, Bytes bytes) {
    const AddressRange range{address, bytes};
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(), {&range, 1});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  EngineCounters Counters() { return rig_->engine().Counters(); }
  // `n` blocks of one handle each, written with seeds 1, 2, ...
  std::vector<Address> Layers(int n) {
    std::vector<Address> layers;
    for (int i = 0; i < n; ++i) {
      layers.push_back(Malloc(kHandle));
      Write(layers.back(), kHandle, static_cast<std::uint64_t>(i + 1));
    }
    return layers;
  }
  void ExpectLayers(const std::vector<Address>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      ExpectReads(layers[i], kHandle, i + 1);
    }
  }
  void FreeAll(const std::vector<Address>& layers) {
    for (Address layer : layers) Free(layer);
  }

  std::unique_ptr<Rig> rig_;
};

TEST_F(EngineTest, BytesComeBackAtTheSameAddress) {
  Open({});
  const Address a = Malloc(5 * kMiB), b = Malloc(1000);
  Write(a, 5 * kMiB, 1);
  Write(b, 1000, 2);
  EXPECT_EQ(Evict(), 4 * kHandle);
  EXPECT_EQ(rig_->StateOf(a), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(a, 5 * kMiB, 1);
  EXPECT_EQ(rig_->StateOf(b), HandleState::kHost);
  ExpectReads(b, 1000, 2);
  EXPECT_EQ(rig_->Check(), "");
  Free(a);
  Free(b);
}

TEST_F(EngineTest, EagerModeToo) {
  Rig::Options options;
  options.async = false;
  Open(options);
  const auto layers = Layers(3);
  EXPECT_EQ(Evict(), 3 * kHandle);
  EXPECT_EQ(Restore(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ByNameMovesThatAlone) {
  Open({});
  const auto layers = Layers(3);
  EXPECT_EQ(EvictOnly(layers[1] + 100, 1), kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  EXPECT_EQ(EvictOnly(layers[1], kHandle), 0u) << "away already";
  const AddressRange range{layers[1], kHandle};
  Result<Bytes> back = rig_->engine().Restore(rig_->device(), {&range, 1});
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, kHandle);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, WhatWasNotWrittenLeavesWithoutACopy) {
  Open({});
  const auto layers = Layers(2);
  Evict();
  ExpectLayers(layers);  // restored, read
  Evict();
  EXPECT_EQ(Counters().clean_drops, 2u);
  EXPECT_EQ(cudasim_violation_count(), 0);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, AWriteAfterTheReturnMakesItDirty) {
  Open({});
  const auto layers = Layers(2);
  Evict();
  ExpectReads(layers[0], kHandle, 1);
  Write(layers[1], kHandle, 20);
  EXPECT_TRUE(rig_->EntryOf(layers[1]).dirty.load());
  Evict();
  EXPECT_EQ(Counters().clean_drops, 1u);
  ExpectReads(layers[0], kHandle, 1);
  ExpectReads(layers[1], kHandle, 20);
  EXPECT_EQ(Counters().dirty_by_checksum, 0u);
  FreeAll(layers);
}

TEST_F(EngineTest, AWritePastTheGuardIsFoundByTheChecksum) {
  Open({});
  const auto layers = Layers(1);
  Evict();
  ExpectReads(layers[0], kHandle, 1);
  Rig::Fill(layers[0], kHandle, 30);  // nobody was told
  Evict();
  EXPECT_EQ(Counters().dirty_by_checksum, 1u);
  EXPECT_EQ(Counters().clean_drops, 0u);
  ExpectReads(layers[0], kHandle, 30);
  FreeAll(layers);
}

TEST_F(EngineTest, FreedWhileAwayGivesEverythingBack) {
  Open({});
  const Address a = Malloc(512), b = Malloc(3 * kMiB);
  Write(a, 512, 1);
  Write(b, 3 * kMiB, 2);
  Evict();
  EXPECT_EQ(rig_->device().Stats().allocated_bytes.stats[0].current, 0);
  Free(a);
  Free(b);
  EXPECT_EQ(rig_->Check(), "");  // also collects what was dropped
  EXPECT_EQ(rig_->engine().HostUsed(), 0u);
  EXPECT_EQ(rig_->ledger().LiveBytes(DeviceIndex{0}), 0u);
  const Address again = Malloc(512);
  Write(again, 512, 3);
  Evict();
  ExpectReads(again, 512, 3);
  Free(again);
}

TEST_F(EngineTest, FreedWhileAwayTheRestOfTheHandleStays) {
  Open({});
  const Address a = Malloc(512), b = Malloc(512), c = Malloc(512);
  Write(c, 512, 3);
  Evict();
  Free(b);
  EXPECT_EQ(rig_->Check(), "");
  const Address d = Malloc(512);
  EXPECT_NE(d, b) << "memory that is away cannot be handed out";
  ExpectReads(c, 512, 3);
  Free(a);
  Free(c);
  Free(d);
}

TEST_F(EngineTest, FreedWhileLeavingIsReleasedAtTheEnd) {
  Open({});
  const auto layers = Layers(2);
  Busy busy(rig_->engine(), {});
  std::thread evictor([&] { EXPECT_EQ(Evict(), 2 * kHandle); });
  ASSERT_TRUE(Eventually([&] {
    return rig_->StateOf(layers[0]) == HandleState::kLeaving;
  }));
  Free(layers[0]);
  busy.Leave();
  evictor.join();
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kUnmapped);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().HostUsed(), kHandle);
  ExpectReads(layers[1], kHandle, 2);
  Free(layers[1]);
}

TEST_F(EngineTest, ALookCancelsWhatIsLeaving) {
  Open({});
  const auto layers = Layers(1);
  Busy busy(rig_->engine(), {});
  Bytes moved = 1;
  std::thread evictor([&] { moved = Evict(); });
  ASSERT_TRUE(Eventually([&] {
    return rig_->StateOf(layers[0]) == HandleState::kLeaving;
  }));
  std::thread looker([&] { ExpectReads(layers[0], kHandle, 1); });
  ASSERT_TRUE(Eventually(
      [&] { return rig_->EntryOf(layers[0]).pins.load() > 0; }));
  busy.Leave();
  evictor.join();
  looker.join();
  EXPECT_EQ(moved, 0u);
  EXPECT_EQ(Counters().evicted_handles, 0u);
  FreeAll(layers);
}

TEST_F(EngineTest, WhatAnOperatorUsesDoesNotLeave) {
  Open({});
  const auto layers = Layers(2);
  {
    Busy busy(rig_->engine(), {{layers[0], kHandle, false}});
    std::thread evictor([&] { EXPECT_EQ(Evict(), kHandle); });
    ASSERT_TRUE(Eventually([&] {
      return rig_->StateOf(layers[1]) == HandleState::kLeaving;
    }));
    EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
    busy.Leave();
    evictor.join();
  }
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ASideStreamWaitsForWhatReturns) {
  Open({});
  const StreamId side = rig_->NewStream();
  const auto layers = Layers(3);
  Evict();
  for (int i = 0; i < 3; ++i) {
    Result<bool> reads = rig_->Reads(layers[i], kHandle, i + 1, side);
    ASSERT_TRUE(reads.has_value());
    EXPECT_TRUE(*reads);
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  // And the next eviction waits for that stream.
  Evict();
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineTest, MallocEvictsWhatIsCold) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  Open(options);
  const auto layers = Layers(14);
  EXPECT_GT(Counters().evicted_handles, 0u);
  ExpectLayers(layers);
  EXPECT_LE(cudasim_peak_used(0), 16 * kMiB);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
}

TEST_F(EngineTest, AboveTheHostBudgetTheColdestGoToDisk) {
  Rig::Options options;
  options.host_budget = 10 * kMiB;  // of which 4 MiB are staging buffers
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(8);
  EXPECT_EQ(Evict(), 8 * kHandle);
  EXPECT_LE(rig_->engine().HostUsed(), 10 * kMiB);
  EXPECT_GE(rig_->engine().DiskUsed(), 5 * kHandle);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  EXPECT_GT(Counters().from_disk_bytes, 0u);
  // Once more, now that some copies are still there.
  Evict();
  ExpectLayers(layers);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().DiskUsed(), 0u);
}

TEST_F(EngineTest, WithoutADiskTheRestStaysAndMallocSaysWhy) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  options.host_budget = 4 * kMiB;
  Open(options);
  const auto layers = Layers(7);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const Address b = Malloc(kHandle), c = Malloc(kHandle), d = Malloc(kHandle);
  auto refused = rig_->Malloc(kHandle);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("CUDA out of memory."));
  EXPECT_THAT(refused.error().message, HasSubstr("disk_budget"));
  Free(b);
  Free(c);
  Free(d);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, ADiskThatFailsLeavesTheBytesWhereTheyAre) {
  Rig::Options options;
  options.host_budget = 6 * kMiB;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  ASSERT_TRUE(rig_->engine().TestHook("fail_disk", "2").has_value());
  const Bytes moved = Evict();
  EXPECT_LT(moved, 6 * kHandle);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  EXPECT_EQ(Evict(), 6 * kHandle) << "the disk works again";
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, AFlippedByteIsAnErrorThatNamesTheLayer) {
  Rig::Options options;
  options.host_budget = 4 * kMiB;  // staging buffers, nothing else
  options.disk_budget = 64 * kMiB;
  Open(options);
  const ScopeId scope = InternScope("net.broken");
  auto broken = rig_->Malloc(kHandle, kDefaultStream,
                             LifetimeClass::kPersistent,
                             {scope, Category::kParameter});
  ASSERT_TRUE(broken.has_value());
  Write(*broken, kHandle, 9);
  const auto layers = Layers(1);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ASSERT_TRUE(rig_->engine()
                  .TestHook("flip_spill_byte", "net.broken")
                  .has_value());
  for (int i = 0; i < 2; ++i) {
    bool computed = false;
    Status status = rig_->Operate(kDefaultStream, {{*broken, 8, false}},
                                  [&] { computed = true; });
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message, HasSubstr("net.broken"));
    EXPECT_FALSE(computed);
    EXPECT_EQ(rig_->StateOf(*broken), HandleState::kPoisoned);
  }
  const AddressRange range{*broken, kHandle};
  EXPECT_FALSE(
      rig_->engine().Restore(rig_->device(), {&range, 1}).has_value());
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  Free(*broken);
  EXPECT_EQ(rig_->Check(), "");
  const Address again = Malloc(kHandle);
  Write(again, kHandle, 10);
  Evict();
  ExpectReads(again, kHandle, 10);
  Free(again);
  FreeAll(layers);
}

TEST_F(EngineTest, AnOperatorThatCannotFitIsToldItsBytesAndTheLimit) {
  Rig::Options options;
  options.capacity = 16 * kMiB;
  Open(options);
  const auto layers = Layers(12);
  std::vector<Access> all;
  for (Address layer : layers) all.push_back({layer, kHandle, false});
  Status status = rig_->Operate(kDefaultStream, all, [] {}, "aten::_foreach");
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  for (const char* word : {"aten::_foreach", "24.00 MiB", "16.00 MiB"}) {
    EXPECT_THAT(status.error().message, HasSubstr(word));
  }
  EXPECT_EQ(rig_->EntryOf(layers[0]).pins.load(), 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineTest, TwoOperatorsThatDoNotFitTogetherTakeTurns) {
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
    return Counters().stalls >= 2 &&
           rig_->EntryOf(layers[5]).pins.load() == 0;
  }));
  EXPECT_FALSE(done);
  busy.Leave();
  other.join();
  EXPECT_TRUE(done);
  FreeAll(layers);
}

TEST_F(EngineTest, ARefusedWriterStillMakesItsOperandsDirty) {
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
  // While it waits, what it will write leaves once more. Its engine counts
  // only threads that run, so the busy one is not waited for by evict: it
  // leaves first, in a thread of its own.
  ASSERT_TRUE(Eventually([&] { return Counters().stalls >= 4; }));
  std::thread evictor([&] {
    const AddressRange range{a, kHandle};
    EXPECT_TRUE(
        rig_->engine().Evict(rig_->device(), {&range, 1}).has_value());
  });
  Eventually([&] { return rig_->StateOf(a) != HandleState::kResident; });
  busy.Leave();
  evictor.join();
  writer.join();
  EXPECT_TRUE(rig_->EntryOf(a).dirty.load());
  Evict();
  EXPECT_EQ(Counters().dirty_by_checksum, 0u);
  ExpectReads(a, kHandle, 50);
  FreeAll(layers);
}

TEST_F(EngineTest, ADriverThatFailsOnceIsAnErrorOnceAndNothingIsLost) {
  Rig::Options options;
  options.host_budget = 8 * kMiB;
  options.disk_budget = 64 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  for (const char* call :
       {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventCreateWithFlags",
        "cudaStreamSynchronize", "cudaStreamWaitEvent", "cuLaunchKernel",
        "cuMemMap", "cuMemCreate", "cudaHostRegister",
        "cudaEventSynchronize"}) {
    for (long nth : {1, 2, 5}) {
      ASSERT_EQ(cudasim_fail(call, nth, 2, 0), 0);
      rig_->engine().Evict(rig_->device(), {});
      rig_->engine().Restore(rig_->device(), {});
      for (Address layer : layers) {
        rig_->Operate(kDefaultStream, {{layer, kHandle, false}}, [] {});
      }
      cudasim_clear_faults();
      ASSERT_EQ(rig_->Check(), "") << call << " " << nth;
      ExpectLayers(layers);
    }
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineTest, TheSabotageHookShows) {
  Open({});
  const auto layers = Layers(1);
  ASSERT_TRUE(rig_->engine()
                  .TestHook("sabotage_restore", ScopeName(ScopeId{1}))
                  .has_value());
  Evict();
  Result<bool> reads = rig_->Reads(layers[0], kHandle, 1);
  ASSERT_TRUE(reads.has_value());
  EXPECT_FALSE(*reads) << "zeros, or the demo's check checks nothing";
  FreeAll(layers);
}

TEST_F(EngineTest, TheBackgroundThreadRestoresWhatTheNextScopesUsed) {
  Rig::Options options;
  options.background = true;
  Open(options);
  const auto layers = Layers(3);
  const Address other = Malloc(512);
  Evict();  // from here on the planner learns
  SetScopeListener(&rig_->engine());
  const auto Pass = [&](bool wait) {
    for (int i = 0; i < 3; ++i) {
      PushScope({ScopeId{static_cast<std::uint32_t>(10 + i)},
                 Category::kUnknown, LifetimeClass::kTransient});
      if (wait) {
        EXPECT_TRUE(Eventually([&] {
          return rig_->StateOf(layers[i]) != HandleState::kHost;
        })) << i;
      }
      ExpectReads(layers[i], kHandle, i + 1);
      PopScope();
    }
    // Uses closer than kBurstOperators count as one.
    for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  };
  for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  Pass(false);
  Evict();
  const std::uint64_t before = Counters().planned_handles;
  Pass(true);
  SetScopeListener(nullptr);
  EXPECT_GT(Counters().planned_handles, before);
  Free(other);
  FreeAll(layers);
}

TEST_F(EngineTest, TheBackgroundThreadRelievesPressure) {
  Rig::Options options;
  options.background = true;
  options.capacity = 32 * kMiB;
  Open(options);
  const auto layers = Layers(15);  // 30 of 32 MiB
  EXPECT_TRUE(Eventually([&] {
    return rig_->device().Stats().allocated_bytes.stats[0].current <=
           static_cast<std::int64_t>(32 * kMiB * 85 / 100);
  }));
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
