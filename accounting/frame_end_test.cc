// SPDX-License-Identifier: Apache-2.0
// What a frame allocates is temporary until the frame ends, on a small
// simulated device: the allocator's and the ledger's halves together.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "allocator/allocator.h"
#include "allocator/events/event_recorder.h"
#include "allocator/state/frame_accounts.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0};
constexpr ScopeId kLayer{7};
constexpr auto kTransient = LifetimeClass::kTransient;

class FrameEndTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_capacity(0, 256 * kMiB);
    device_ = DeviceAllocator::Create(Device::Open(kGpu).value(), {}).value();
    device_->SetAccounts(&ledger_);
  }
  void TearDown() override {
    ExpectSound();
    EXPECT_EQ(ledger_.Totals(kGpu).live, 0u);
    for (const LedgerRow& row : ledger_.Rows()) EXPECT_EQ(row.blocks, 0u);
  }
  FrameId Begin(ScopeId scope = kLayer) {
    return FrameAccounts::Get().Begin(kGpu, scope);
  }
  Address Malloc(Bytes bytes, FrameId frame, ScopeId scope = kLayer) {
    Charge charge{scope, Category::kTemporary};
    charge.frame = frame;
    return device_->Malloc({bytes, kDefaultStream, kTransient, charge})
        .value()
        .address;
  }
  void Free(Address address) {
    ASSERT_TRUE(device_->Free(address).has_value());
  }
  Bytes Live(Category category, ScopeId scope = kLayer) {
    for (const LedgerRow& row : ledger_.Rows()) {
      if (row.charge == Charge{scope, category}) return row.live;
    }
    return 0;
  }
  Bytes Temporary() { return Live(Category::kTemporary); }
  Bytes Activation() { return Live(Category::kActivation); }
  Category CategoryOf(Address address) {
    BlockView view;
    EXPECT_TRUE(device_->FindLive(address, &view));
    EXPECT_EQ(view.charge.frame, 0u) << "nobody outside knows of frames";
    return view.charge.category;
  }
  void ExpectSound() {
    const Status status = ledger_.CheckInvariants();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    ASSERT_TRUE(device_->CheckInvariants().has_value());
  }

  Ledger ledger_;
  std::unique_ptr<DeviceAllocator> device_;
};

TEST_F(FrameEndTest, WhatOutlivesItsFrameIsAnActivation) {
  const FrameId frame = Begin();
  const Address kept = Malloc(3 * kMiB, frame), small = Malloc(512, frame);
  Free(Malloc(5 * kMiB, frame));
  Free(small);
  EXPECT_EQ(Temporary(), 3 * kMiB + 0u);
  EXPECT_EQ(CategoryOf(kept), Category::kTemporary);
  device_->EndFrame(frame);
  EXPECT_EQ(Temporary(), 0u);
  EXPECT_EQ(Activation(), 3 * kMiB);
  EXPECT_EQ(CategoryOf(kept), Category::kActivation);
  ExpectSound();
  Free(kept);
  EXPECT_EQ(Activation(), 0u);
}

TEST_F(FrameEndTest, FramesOfOneScopeEndEachForItself) {
  const FrameId outer = Begin(), inner = Begin();
  const Address of_outer = Malloc(kMiB, outer), of_inner = Malloc(kMiB, inner);
  device_->EndFrame(inner);
  EXPECT_EQ(CategoryOf(of_outer), Category::kTemporary);
  EXPECT_EQ(CategoryOf(of_inner), Category::kActivation);
  EXPECT_EQ(Temporary(), kMiB);
  EXPECT_EQ(Activation(), kMiB);
  Free(of_inner);
  device_->EndFrame(outer);
  Free(of_outer);
}

TEST_F(FrameEndTest, ANumberIsGivenAgainWhenItsLastBlockIsGone) {
  const FrameId frame = Begin();
  const Address kept = Malloc(512, frame);
  device_->EndFrame(frame);
  const FrameId other = Begin();
  EXPECT_NE(other, frame);
  device_->EndFrame(other);
  Free(kept);
  EXPECT_EQ(Begin(), frame);
  // Out of the bin, with the same charge: another frame's all the same.
  const Address again = Malloc(512, frame);
  EXPECT_EQ(again, kept);
  EXPECT_EQ(Temporary(), 512u);
  Free(again);
  device_->EndFrame(frame);
}

TEST_F(FrameEndTest, ARelabelTakesABlockOutOfItsFrame) {
  const FrameId frame = Begin();
  const Address a = Malloc(kMiB, frame), b = Malloc(kMiB, frame),
                c = Malloc(kMiB, frame);
  const Charge input{ScopeId{9}, Category::kInput};
  device_->Relabel(a, 1, input, /*keep_category=*/false);
  device_->Relabel(b, 1, input, /*keep_category=*/true);
  EXPECT_EQ(CategoryOf(a), Category::kInput);
  EXPECT_EQ(CategoryOf(b), Category::kActivation) << "somebody wants it";
  device_->EndFrame(frame);
  EXPECT_EQ(Activation(), kMiB);
  device_->Relabel(c, 1, input, /*keep_category=*/true);
  EXPECT_EQ(CategoryOf(c), Category::kActivation);
  EXPECT_EQ(Activation(), 0u);
  ExpectSound();
  for (const Address address : {a, b, c}) Free(address);
  EXPECT_EQ(Begin(), frame) << "nobody has it any more";
  device_->EndFrame(frame);
}

// A recording finds by these events what became of each block.
TEST_F(FrameEndTest, RingsHaveFramesAndFinalCategories) {
  ASSERT_TRUE(EventRecorder::Start({}));
  device_->NoteTracker();
  const std::vector<std::uint64_t> since = EventRecorder::Now();
  const FrameId frame = Begin(), empty = Begin();
  const Address kept = Malloc(3 * kMiB, frame);
  Free(Malloc(kMiB, frame));
  for (const SegmentView& segment : device_->Now().segments) {
    for (const BlockView& block : segment.blocks) {
      EXPECT_EQ(block.open_frame, block.address == kept ? frame : 0);
    }
  }
  device_->EndFrame(empty);
  device_->EndFrame(frame);
  Free(kept);
  EventRecorder::Stop();
  std::vector<std::tuple<EventKind, std::uint64_t, Category, int>> found;
  for (const auto& ring : EventRecorder::Read(since).rings) {
    for (const Event& event : ring.events) {
      if (event.kind != EventKind::kAlloc &&
          event.kind != EventKind::kFreeRequested &&
          event.kind != EventKind::kFrameEnd) {
        continue;
      }
      EXPECT_EQ(event.scope, Raw(kLayer));
      EXPECT_GT(OrderOf(event.aux), 0u);
      found.emplace_back(event.kind, event.address,
                         static_cast<Category>(event.category), event.flags);
    }
  }
  const Address freed = std::get<1>(found.at(1));
  const decltype(found) expected = {
      {EventKind::kAlloc, kept, Category::kTemporary, kEventInFrame},
      {EventKind::kAlloc, freed, Category::kTemporary, kEventInFrame},
      {EventKind::kFreeRequested, freed, Category::kTemporary, 0},
      {EventKind::kFrameEnd, frame, Category::kUnknown, 0},
      {EventKind::kFreeRequested, kept, Category::kActivation, 0}};
  EXPECT_EQ(found, expected);
}

// A block that waits for its streams is reported with its final category.
TEST_F(FrameEndTest, PendingBlocksKeepTheirFinalCategory) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  const StreamId other{reinterpret_cast<std::uint64_t>(stream)};
  const FrameId frame = Begin();
  const Address kept = Malloc(3 * kMiB, frame);
  device_->EndFrame(frame);
  ASSERT_TRUE(device_->RecordStream(kept, other).has_value());
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, /*forever=*/1),
            0);
  Free(kept);
  EXPECT_EQ(CategoryOf(kept), Category::kActivation);
  cudasim_clear_faults();
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// A frame without blocks ends without the device's lock (core::EndFrame), while
// whoever freed its last one still holds that.
TEST_F(FrameEndTest, ThreadsFreeWhatOthersFramesMade) {
  constexpr int kThreads = 4, kRounds = 3000;
  std::array<std::atomic<Address>, 16> shared{};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int round = 0; round < kRounds; ++round) {
        const ScopeId scope{1 + static_cast<std::uint32_t>(random() % 3)};
        const FrameId frame = Begin(scope);
        for (unsigned i = random() % 3; i > 0; --i) {
          const Address made = Malloc(512 * (1 + random() % 64), frame, scope);
          const Address other = shared[random() % 16].exchange(made);
          if (other != 0) Free(other);
        }
        if (FrameAccounts::Get().at(frame).HasNoBlocks()) {
          FrameAccounts::Get().Recycle(frame);
        } else {
          device_->EndFrame(frame);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSound();
  for (std::atomic<Address>& address : shared) {
    if (address.load() != 0) Free(address);
  }
  EXPECT_EQ(Live(Category::kTemporary, ScopeId{1}), 0u);
}

// Beside a model that looks at every block.
TEST_F(FrameEndTest, SumsAreExactWhateverTheOrder) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    struct Made {
      Address address;
      Bytes bytes;
      Charge charge;
      int frame;  // -1: it has ended
    };
    std::mt19937 random(seed);
    std::vector<Made> live;
    std::vector<std::pair<FrameId, ScopeId>> open;
    for (int step = 0; step < 600; ++step) {
      const unsigned what = random() % 8;
      const ScopeId scope{1 + static_cast<std::uint32_t>(random() % 3)};
      if (open.empty() || (what == 0 && open.size() < 6)) {
        open.emplace_back(Begin(scope), scope);
      } else if (what == 1) {
        device_->EndFrame(open.back().first);
        open.pop_back();
        for (Made& made : live) {
          if (made.frame != static_cast<int>(open.size())) continue;
          made.frame = -1;
          made.charge.category = Category::kActivation;
        }
      } else if (what < 5 || live.empty()) {
        const Bytes bytes = 512 * (1 + random() % 6000);
        const auto [frame, of] = open.back();
        const Address address = Malloc(bytes, frame, of);
        BlockView view;
        ASSERT_TRUE(device_->FindLive(address, &view));
        live.push_back({address,
                        view.bytes,
                        {of, Category::kTemporary},
                        static_cast<int>(open.size()) - 1});
      } else {
        Made& one = live[random() % live.size()];
        if (what == 5) {
          one.charge = {scope, Category::kGradient};
          one.frame = -1;
          device_->Relabel(one.address, 1, one.charge, false);
        } else {
          // Often by another thread than the frame's.
          if (random() % 4 == 0) {
            std::thread([&] { Free(one.address); }).join();
          } else {
            Free(one.address);
          }
          one = live.back();
          live.pop_back();
        }
      }
      std::map<std::pair<ScopeId, Category>, Bytes> expected;
      for (const Made& made : live) {
        expected[{made.charge.scope, made.charge.category}] += made.bytes;
      }
      for (const LedgerRow& row : ledger_.Rows()) {
        const auto key = std::pair(row.charge.scope, row.charge.category);
        ASSERT_EQ(row.live, expected[key]) << "seed " << seed;
      }
      ExpectSound();
    }
    for (; !open.empty(); open.pop_back()) {
      device_->EndFrame(open.back().first);
    }
    for (const Made& made : live) Free(made.address);
  }
}

}  // namespace
}  // namespace stratalloc
