// SPDX-License-Identifier: Apache-2.0
// Fixture of the tests of allocator/RESIDENCY.md: one page, brought into any
// state by the steps of an eviction and of a restore; no bytes are copied.
//
// Thread-safety: one thread. Lifetime: of one test. Errors: a step of the
// fixture that fails fails the test.
// Invariants: at the end the page is freed, whatever state it is in, and
// nothing is left.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_CELLS_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_CELLS_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/requests/device_parts_fixture_test.h"
#include "allocator/requests/device_waits.h"
#include "allocator/requests/transactions.h"

namespace stratalloc {

class CellsTest : public DevicePartsTest {
 protected:
  static constexpr std::uint64_t kAllStreams = ~std::uint64_t{0};

  void SetUp() override {
    DevicePartsTest::SetUp();
    waits_.emplace(parts());
    transactions_.emplace(parts(), *waits_);
    stream_ = NewStream();
  }
  void TearDown() override {
    cudasim_clear_faults();
    EndMoves();
    if (block_ != nullptr) FreeBlock();
    DevicePartsTest::TearDown();
  }
  Transactions& transactions() { return *transactions_; }
  HandleUse& use() { return page_.use(); }
  HandleState State() { return page_.state(); }
  MoveEvents Events() { return MoveEvents(DeviceIndex{0}, parts().moves); }

  // A page in that state. A block lives in half of it, unless nothing lives in
  // pages of that state.
  void Open(HandleState state) {
    block_ = Malloc(kLarge, kMiB);
    page_ = parts().table.RefOf(block_->address);
    if (state == HandleState::kUnmapped || state == HandleState::kReleasing) {
      FreeBlock();
      BeginRelease();
      if (state == HandleState::kUnmapped) EndRelease(/*fenced=*/true);
    } else if (state != HandleState::kResident) {
      BringOut(state);
    }
    ASSERT_EQ(State(), state) << HandleStateName(state);
  }
  void FreeBlock() { Free(std::exchange(block_, nullptr)); }
  void BeginRelease() {
    release_ = parts().free_handles.BeginRelease(~Bytes{0}, PoolId{});
  }
  void EndRelease(bool fenced) {
    parts().free_handles.EndRelease(release_, fenced);
    release_ = {};
  }

  // ---- the way out ----------------------------------------------------------

  std::vector<Claim> Choose() {
    return transactions().ChooseLeaving({&page_, 1});
  }
  bool Mark(const std::vector<Claim>& claims) {
    departures_ = transactions().MarkLeaving(claims);
    return !departures_.empty();
  }
  // False: the page is resident again.
  bool BeginCopies(std::uint64_t users = kAllStreams, bool may_leave = true) {
    transactions().BeginEvict(&departures_, users, {}, may_leave);
    copying_ = !departures_.empty();
    return copying_;
  }
  Departure::Left EndCopies(HandleState to = HandleState::kHost) {
    departures_[0].to = to;
    transactions().EndFencing();
    copying_ = false;
    transactions().CommitEvict(&departures_, Events());
    const Departure::Left left = departures_[0].left;
    departures_.clear();
    return left;
  }

  // ---- the way back ---------------------------------------------------------

  Result<std::size_t> BeginRestore() {
    PhysicalMemory* const memory = transactions().TakePhysical(kHandle).value();
    Result<std::size_t> begun =
        transactions().BeginRestore({&page_, 1}, {&memory, 1});
    if (!begun || *begun == 0) transactions().PutPhysical(memory);
    return begun;
  }
  // Its copy is enqueued behind work of `stream_` that is not done.
  void EnqueueCopy() {
    cudasim_hold_streams(1);
    Work(stream_);
    const EventId event = transactions().TakeEvent();
    ASSERT_TRUE(parts().device.RecordEvent(event, stream_).has_value());
    transactions().CommitRestore({page_}, event);
    enqueued_ = true;
  }
  void FinishCopy() {
    cudasim_hold_streams(0);
    ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    parts().arrivals.Settle();
    enqueued_ = false;
  }

  // ---- what operators and captures do ---------------------------------------

  // Of an operator on `stream` that has pinned the page: may it use it at once?
  bool Look(StreamId stream) {
    used_ = false;
    const GuardedHandle guarded{page_, /*written=*/false};
    const Result<bool> complete = transactions().Await(
        stream, {&guarded, 1}, [this](const GuardedHandle&) { used_ = true; });
    EXPECT_TRUE(complete.has_value());
    EXPECT_EQ(used_, complete.value_or(false));
    return used_;
  }
  void BeginCapture() {
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
              cudaSuccess);
    ASSERT_TRUE(parts().captures.Note(stream_));
  }
  void EndCapture() {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  // A free block of half a page in this one; nullptr if none can be had without
  // new memory.
  Block* FindSpace() { return Search(kLarge, kMiB, /*limit=*/0).block; }

  std::optional<DeviceWaits> waits_;
  std::optional<Transactions> transactions_;
  StreamId stream_{};
  Block* block_ = nullptr;
  HandleRef page_;
  std::vector<Departure> departures_;
  FreeHandles::Release release_;
  bool copying_ = false, enqueued_ = false, used_ = false;

 private:
  void BringOut(HandleState state) {
    ASSERT_TRUE(Mark(Choose()));
    if (state == HandleState::kLeaving) return;
    ASSERT_TRUE(BeginCopies());
    if (state == HandleState::kCopyingOut) return;
    const bool stays = IsAway(state) && state != HandleState::kPoisoned;
    ASSERT_EQ(EndCopies(stays ? state : HandleState::kDisk),
              Departure::Left::kAway);
    if (stays) return;
    ASSERT_EQ(BeginRestore().value(), 1u);
    if (state == HandleState::kPoisoned) {
      transactions().AbortRestore(page_, HandleState::kPoisoned);
    } else {
      EnqueueCopy();
    }
  }
  void EndMoves() {
    if (!release_.handles.empty()) EndRelease(/*fenced=*/true);
    if (copying_) EndCopies();
    if (State() == HandleState::kLeaving) BeginCopies(0, /*may_leave=*/false);
    if (enqueued_) FinishCopy();
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_CELLS_FIXTURE_TEST_H_
