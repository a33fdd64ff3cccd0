// SPDX-License-Identifier: Apache-2.0
// Worker: its private pool. One pool at a time, which only this worker's
// thread allocates in; blocks outlive it. What is allocated in it is known
// exactly, so the allocator's own list is compared with it.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/system/stress/worker.h"

namespace stratalloc {

void Worker::StepPool() {
  DeviceAllocator& device = this->device();
  if (!pool_.is_private()) {
    pool_ = PoolId{0, ++world_.pools};
    device.CreateOrUsePool(pool_);
    // What a pool lends, others allocate in it: then nothing goes back.
    lends_ = Chance(25);
    if (lends_) Expect(device.SetUseOnOom(pool_, true), "use_on_oom");
    if (Chance(15)) Expect(device.SetNoSplit(pool_), "no_split");
  }
  const std::uint64_t dice = Below(10);
  if (dice < 5) {
    AllocateInPool();
  } else if (dice < 7 && !lends_) {
    TakeCheckpoint();
  } else if (dice < 9 && checkpoint_) {
    GoBack();
  } else if (dice == 9) {
    LeavePool();
  }
  ComparePool();
}

void Worker::Expect(const Status& status, const char* what) {
  if (!status) {
    world_.Complain(std::string(what) + " failed: " + status.error().message);
  }
}

void Worker::AllocateInPool() {
  DeviceAllocator& device = this->device();
  Expect(
      device.BeginAllocateToPool(pool_,
                                 [mine = std::this_thread::get_id()](StreamId) {
                                   return std::this_thread::get_id() == mine;
                                 }),
      "a route to a pool");
  routed_ = true;
  for (std::uint64_t i = 1 + Below(5); i > 0; --i) {
    StepMalloc(Chance(60) ? world_.sizes[Below(world_.sizes.size())]
                          : SomeSize());
    if (Chance(40)) StepFree();
  }
  routed_ = false;
  Expect(device.EndAllocateToPool(pool_).map([](bool) {}),
         "the end of a route");
  Expect(device.ReleasePool(pool_), "the end of a route's use");
  if (device.PoolUseCount(pool_) != 1) {
    world_.Complain("a pool is not used once");
  }
}

void Worker::TakeCheckpoint() {
  Result<Checkpoint> taken = device().TakeCheckpoint(pool_);
  if (!taken) {
    world_.Complain("no checkpoint: " + taken.error().message);
    return;
  }
  checkpoint_ = *taken;
  homes_.clear();
  for (const auto& block : blocks_) {
    if (block->pool == pool_) homes_[block->address] = block->home;
  }
}

void Worker::GoBack() {
  // Going back frees blocks whatever uses them: their streams are ordered
  // here, and memory that waits for its events cannot be had back.
  for (const auto& block : blocks_) {
    if (block->pool != pool_) continue;
    for (StreamId used : block->used) Order(block->place, used, block->home);
  }
  const bool settled = Chance(80);
  if (settled) {
    UseDevice(place_);
    cuCtxSynchronize();
  }
  Result<CheckpointDelta> delta = device().GoBackTo(*checkpoint_);
  if (!delta) {
    if (delta.error().code != ErrorCode::kInvalidArgument ||
        (settled && !world_.faulty)) {
      world_.Complain("going back failed: " + delta.error().message);
    }
    return;
  }
  ++tally_.gone_back;
  const auto gone = std::erase_if(
      blocks_, [&](const auto& block) { return block->pool == pool_; });
  if (gone != delta->freed.size()) {
    world_.Complain("going back freed other blocks than there were");
  }
  for (const CheckpointBlock& back : delta->allocated) {
    auto block = std::make_unique<Shadow>();
    block->address = back.address;
    block->bytes = back.requested;
    block->place = place_;
    block->home = homes_.at(back.address);
    block->pool = pool_;
    block->used = {block->home};
    blocks_.push_back(std::move(block));
  }
}

void Worker::LeavePool() {
  if (!pool_.is_private()) return;
  DeviceAllocator& device = this->device();
  Expect(device.ReleasePool(pool_), "the last use of a pool");
  if (Status status = device.EmptyPool(pool_); !status) {
    Judge("emptying a pool", status.error());
  }
  pool_ = {};
  checkpoint_.reset();
}

void Worker::ComparePool() {
  if (!pool_.is_private() || lends_) return;
  Result<std::vector<Address>> live = device().AllocatedIn(pool_);
  std::vector<Address> mine;
  for (const auto& block : blocks_) {
    if (block->pool == pool_) mine.push_back(block->address);
  }
  std::sort(mine.begin(), mine.end());
  if (live) std::sort(live->begin(), live->end());
  if (!live || *live != mine) {
    world_.Complain("a pool lists other blocks than were allocated in it");
  }
}

}  // namespace stratalloc
