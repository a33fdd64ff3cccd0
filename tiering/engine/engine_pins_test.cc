// SPDX-License-Identifier: Apache-2.0
// Pins that outlast an operator: what is pinned stays, for as long as promised.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/state/pin_poll.h"
#include "tiering/engine/engine_fixture_test.h"
namespace stratalloc {
namespace {

std::vector<BlockPin> polled;
Engine* polled_engine = nullptr;
bool complete = false;

void Poll() {
  if (!complete) return;
  for (const BlockPin& pin : polled) {
    polled_engine->UnpinBlock(pin, /*unobserved=*/false);
  }
  polled.clear();
}

class EnginePinsTest : public EngineTest {
 protected:
  void TearDown() override {
    PinPoll::Use(nullptr, nullptr);
    EngineTest::TearDown();
  }
  Engine& engine() { return rig_->engine(); }
  void OpenCard(Bytes capacity) {
    Rig::Options options;
    options.capacity = capacity;
    Open(options);
  }
  BlockPin Pin(Address address, PinReason reason = PinReason::kProgram) {
    const AddressRange range{address, 1};
    BlockPin pin;
    Status status = engine().PinBlocks("pin", reason, {&range, 1}, {&pin, 1});
    EXPECT_TRUE(status) << status.error().message;
    return pin;
  }
  bool IsHere(Address address) {
    return rig_->StateOf(address) == HandleState::kResident;
  }
  Bytes Stays(StayReason reason) { return rig_->device().Stays().of(reason); }
};

TEST_F(EnginePinsTest, StaysUntilTheLastPinIsTakenBack) {
  Open({});
  const auto layers = Layers(2);
  ASSERT_EQ(Evict(), 2 * kHandle);
  const BlockPin first = Pin(layers[0] + 100), second = Pin(layers[0]);
  EXPECT_EQ(first.address, layers[0]);
  EXPECT_TRUE(IsHere(layers[0]));
  EXPECT_EQ(Stays(StayReason::kProgram), kHandle);
  engine().UnpinBlock(first, true);
  EXPECT_EQ(Evict(), 0u);
  EXPECT_TRUE(IsHere(layers[0]));
  engine().UnpinBlock(second, true);
  EXPECT_EQ(Stays(StayReason::kProgram), 0u);
  EXPECT_EQ(Evict(), kHandle);
  engine().UnpinBlock(second, true);  // once too often
  EXPECT_EQ(Evict(), 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EnginePinsTest, APinOfAFreedBlockIsNoOnesPin) {
  Open({});
  Address address = Malloc(kHandle);
  const BlockPin old = Pin(address);
  Free(address);
  ASSERT_EQ(Malloc(kHandle), address);  // the same place
  Write(address, kHandle, 5);
  const BlockPin pin = Pin(address);
  engine().UnpinBlock(old, true);
  EXPECT_EQ(Evict(), 0u);
  engine().UnpinBlock(pin, true);
  EXPECT_EQ(Evict(), kHandle);
  ExpectReads(address, kHandle, 5);
  Free(address);
}

TEST_F(EnginePinsTest, WhatDoesNotFitTogetherIsNotPinned) {
  OpenCard(16 * kMiB);
  const auto layers = Layers(12);
  std::vector<AddressRange> all;
  for (Address layer : layers) all.push_back({layer, kHandle});
  std::vector<BlockPin> pins(all.size());
  Status status = engine().PinBlocks("pin", PinReason::kProgram, all, pins);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  for (const BlockPin& pin : pins) EXPECT_EQ(pin.serial, 0u);
  EXPECT_EQ(rig_->device().Pinned().size(), 0u);
  Evict();
  for (Address layer : layers) EXPECT_FALSE(IsHere(layer));
  ExpectLayers(layers);
  FreeAll(layers);
}

// The older copy below is not taken for the bytes that somebody wrote past the
// guard, and work on streams that nobody noted is waited for.
TEST_F(EnginePinsTest, WhatNobodySawIsTakenForInUseAndCompared) {
  Open({});
  const auto layers = Layers(1);
  ASSERT_EQ(Evict(), kHandle);
  const BlockPin pin = Pin(layers[0], PinReason::kExported);
  const StreamId theirs = rig_->NewStream();
  Rig::Fill(layers[0], kHandle, 9);
  const cudasim_access access{layers[0], kHandle, 1};
  cudasim_begin_operator(Rig::ToCuda(theirs), "foreign");
  cudasim_note_access(Rig::ToCuda(theirs), "foreign", &access, 1);
  engine().UnpinBlock(pin, true);
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_EQ(Counters().clean_drops, 0u);
  EXPECT_EQ(Counters().dirty_by_checksum, 1u);
  ExpectReads(layers[0], kHandle, 9);
  FreeAll(layers);
}

// A pinned block that is freed beside others: who used it may use it still.
TEST_F(EnginePinsTest, FreeingWhatIsPinnedWaitsForItsUsers) {
  Open({});
  constexpr Bytes kBytes = 256 * kKiB;
  const Address freed = Malloc(kBytes), other = Malloc(kBytes);
  Write(other, kBytes, 3);
  ASSERT_EQ(&rig_->UseOf(freed), &rig_->UseOf(other));
  Pin(freed, PinReason::kExported);
  const StreamId theirs = rig_->NewStream();
  const cudasim_access access{freed, kBytes, 0};
  cudasim_begin_operator(Rig::ToCuda(theirs), "foreign");
  cudasim_note_access(Rig::ToCuda(theirs), "foreign", &access, 1);
  Free(freed);
  EXPECT_EQ(Evict(), kHandle);
  ExpectReads(other, kBytes, 3);
  Free(other);
}

TEST_F(EnginePinsTest, WhatIsOverIsAskedForWhenVictimsAreChosen) {
  Open({});
  const auto layers = Layers(2);
  polled = {Pin(layers[0], PinReason::kCollective)};
  polled_engine = &engine();
  PinPoll::Use(&Poll, nullptr);
  complete = false;
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_TRUE(IsHere(layers[0]));
  EXPECT_EQ(Stays(StayReason::kCollective), kHandle);
  complete = true;
  Unserved wants(kHandle);
  engine().Reclaim(DeviceIndex{0}, wants);
  EXPECT_FALSE(IsHere(layers[0]));
  ExpectLayers(layers);
  FreeAll(layers);
}

// A collective's end is the network's: nobody in this process gets on before.
TEST_F(EnginePinsTest, AnOperatorWaitsForWhatIsUnderWay) {
  OpenCard(64 * kMiB);
  const auto operands = Layers(14);
  ASSERT_EQ(Evict(), 14 * kHandle);
  const auto layers = Layers(20);
  for (Address layer : layers) {
    polled.push_back(Pin(layer, PinReason::kCollective));
  }
  polled_engine = &engine();
  static int polls;
  polls = 0;
  PinPoll::Use(
      [] {
        complete = ++polls > 50;
        Poll();
      },
      [] { return polled.empty() ? 0 : 1; });
  std::vector<Access> accesses;
  for (Address operand : operands)
    accesses.push_back({operand, kHandle, false});
  Status status = engine().EnterOperator(kDefaultStream, "wide", accesses);
  EXPECT_TRUE(status) << status.error().message;
  if (status) engine().LeaveOperator();
  EXPECT_GT(polls, 50);
  EXPECT_TRUE(polled.empty());
  ExpectLayers(layers);
  ExpectLayers(operands);
  FreeAll(layers);
  FreeAll(operands);
}

// Best effort: whoever asks for an address does not wait ten seconds for it.
TEST_F(EnginePinsTest, AnAddressIsNotWaitedFor) {
  OpenCard(64 * kMiB);
  const Address large = Malloc(14 * kHandle);
  ASSERT_EQ(Evict(), 14 * kHandle);
  const auto layers = Layers(20);
  for (Address layer : layers) Pin(layer, PinReason::kCollective);
  static int polls;
  polls = 0;
  PinPoll::Use([] { ++polls; }, [] { return 1; });
  engine().HandOut(large);
  EXPECT_LT(polls, 20);
  EXPECT_TRUE(engine().MustHandOut(large)) << "nothing is pinned";
  ExpectLayers(layers);
  FreeAll(layers);
  Free(large);
}

// Whose turn it is, is somebody else: the address is as good as it is.
TEST_F(EnginePinsTest, AnAddressIsAskedForWhileOthersWait) {
  OpenCard(64 * kMiB);
  const auto operands = Layers(14);
  ASSERT_EQ(Evict(), 14 * kHandle);
  const Address freed = Malloc(kHandle);
  const auto layers = Layers(19);
  for (Address layer : layers) {
    polled.push_back(Pin(layer, PinReason::kCollective));
  }
  polled_engine = &engine();
  int polls = 0;
  // On the thread that waits. The first ones are its try's, under a lock.
  static std::function<void()> when_refused;
  when_refused = [&] {
    if (++polls != 20) return;
    Free(freed);  // news: it will try again
    std::thread([&] { engine().HandOut(operands[0]); }).join();
    EXPECT_TRUE(engine().MustHandOut(operands[0]));
    complete = true;
    Poll();
  };
  PinPoll::Use([] { when_refused(); }, [] { return polled.empty() ? 0 : 1; });
  std::vector<Access> accesses;
  for (Address operand : operands) {
    accesses.push_back({operand, kHandle, false});
  }
  Status status = engine().EnterOperator(kDefaultStream, "wide", accesses);
  EXPECT_TRUE(status) << status.error().message;
  if (status) engine().LeaveOperator();
  EXPECT_GE(polls, 20);
  PinPoll::Use(nullptr, nullptr);
  ExpectLayers(layers);
  ExpectLayers(operands);
  FreeAll(layers);
  FreeAll(operands);
}

TEST_F(EnginePinsTest, HandedPointersAreTheNewestOnly) {
  OpenCard(64 * kMiB);
  const auto layers = Layers(8);
  ASSERT_EQ(Evict(), 8 * kHandle);
  // An eighth of the limit is four handles.
  for (Address layer : layers) engine().HandOut(layer + 512);
  for (Address layer : layers) EXPECT_TRUE(IsHere(layer));
  EXPECT_EQ(Stays(StayReason::kPointer), 4 * kHandle);
  EXPECT_EQ(Evict(), 4 * kHandle);
  for (int i = 4; i < 8; ++i) {
    EXPECT_TRUE(IsHere(layers[i])) << i;
    EXPECT_FALSE(engine().MustHandOut(layers[i])) << i;
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

// Who is asked for in every round keeps its place, whoever came first.
TEST_F(EnginePinsTest, APointerAskedForAgainIsTheNewest) {
  OpenCard(64 * kMiB);
  const auto layers = Layers(8);
  ASSERT_EQ(Evict(), 8 * kHandle);
  for (Address layer : layers) {
    engine().HandOut(layer);
    // A shim asks this first, and no more where it is told that nothing is to
    // be done.
    EXPECT_FALSE(engine().MustHandOut(layers[0]));
  }
  EXPECT_EQ(Evict(), 4 * kHandle);
  for (int i : {0, 5, 6, 7}) EXPECT_TRUE(IsHere(layers[i])) << i;
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EnginePinsTest, WhatWasFreedTakesUpNoShareOfPointers) {
  OpenCard(64 * kMiB);
  const auto layers = Layers(4);
  for (Address layer : layers) engine().HandOut(layer);
  // The newest go first, one of them behind the work of another stream.
  const StreamId other = rig_->NewStream();
  ASSERT_TRUE(rig_->device().RecordStream(layers[3], other));
  Free(layers[3]);
  EXPECT_TRUE(rig_->device().CheckInvariants()) << "listed though it is freed";
  Free(layers[2]);
  const auto newer = Layers(2);
  for (Address layer : newer) engine().HandOut(layer);
  EXPECT_EQ(Evict(), 0u);
  EXPECT_TRUE(IsHere(layers[0]));
  EXPECT_TRUE(rig_->device().CheckInvariants());
  // Five are more than an eighth: the oldest goes.
  const auto last = Layers(1);
  engine().HandOut(last[0]);
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_FALSE(IsHere(layers[0]));
  Free(layers[0]);
  Free(layers[1]);
  FreeAll(newer);
  FreeAll(last);
}

TEST_F(EnginePinsTest, HandedPointersGoWhenSomebodyWouldBeRefused) {
  OpenCard(64 * kMiB);
  const auto layers = Layers(3);
  for (Address layer : layers) engine().HandOut(layer);
  EXPECT_EQ(Evict(), 0u);
  Unserved wants(3 * kHandle);
  EXPECT_FALSE(engine().Reclaim(DeviceIndex{0}, wants));
  EXPECT_EQ(Counters().evicted_handles, 3u);
  ExpectLayers(layers);
  FreeAll(layers);
}

// The address of an operand, asked for inside its operator, is no news.
TEST_F(EnginePinsTest, NoOperandIsHandedOut) {
  Open({});
  const auto layers = Layers(2);
  const Access access{layers[0], kHandle, false};
  ASSERT_TRUE(engine().EnterOperator(kDefaultStream, "op", {&access, 1}));
  EXPECT_FALSE(engine().MustHandOut(layers[0]));
  EXPECT_TRUE(engine().MustHandOut(layers[1]));
  engine().LeaveOperator();
  EXPECT_TRUE(engine().MustHandOut(layers[0]));
  const Address activation =
      Malloc(kHandle, kDefaultStream, LifetimeClass::kTransient);
  EXPECT_FALSE(engine().MustHandOut(activation));
  EXPECT_EQ(Pin(activation).serial, 0u);
  Free(activation);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
