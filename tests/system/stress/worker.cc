// SPDX-License-Identifier: Apache-2.0
#include "tests/system/stress/worker.h"

#include <algorithm>
#include <utility>

#include "accounting/scope_stack.h"

namespace stratalloc {
namespace {

void AddUnique(std::vector<StreamId>& streams, StreamId stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
}

}  // namespace

void World::Complain(const std::string& what) {
  std::lock_guard lock(mutex);
  if (wrong.size() < 4000) wrong += what + "\n";
}

Worker::Worker(World& world, std::size_t place, std::uint64_t seed)
    : world_(world), place_(place), random_(seed) {
  for (std::size_t i = 0; i < world_.places.size(); ++i) {
    UseDevice(i);
    events_.emplace_back();
    cuEventCreate(&events_.back(), CU_EVENT_DISABLE_TIMING);
  }
  if (!world_.has_system_steps) return;
  UseDevice(place_);
  captured_ = world_.rig->NewStream();
}

Worker::~Worker() {
  for (CUevent event : events_) cuEventDestroy(event);
}

void Worker::Run(int steps) {
  for (int i = 0; i < steps; ++i) {
    ++tally_.steps;
    UseDevice(place_);
    if (world_.faulty && Chance(8)) StepFault();
    if (world_.has_system_steps && Chance(6)) StepSystem();
    Step();
    if (faulty_ > 0 && --faulty_ == 0) world_.faults.Clear();
  }
  if (faulty_ > 0) world_.faults.Clear();
  faulty_ = 0;
  while (ScopeDepth() > 0) PopScope();
}

void Worker::Step() {
  if (world_.roomy) return StepRoomy();
  const std::uint64_t dice = Below(100);
  if (dice < 24) return StepMalloc(SomeSize());
  if (dice < 35) return StepFree();
  if (dice < 53) return StepOperator();
  if (dice < 58) return StepNest();
  if (dice < 62) return StepList();
  if (dice < 72) return StepScope();
  if (dice < 76) return StepEvict();
  if (dice < 80) return StepRestore();
  if (dice < 86) return StepBurst();
  if (dice < 90) return StepPool();
  if (dice < 94) return StepHand();
  if (dice < 96 && world_.corruption) {
    world_.rig->disk_faults().FlipReads(1);
    return;
  }
  if (dice < 98) return StepElsewhere();
  StepRare();
}

// Nothing that stays on the device outside an operator, and no limit that
// falls.
void Worker::StepRoomy() {
  const std::uint64_t dice = Below(100);
  if (dice < 28) return StepMalloc(SomeSize());
  if (dice < 34) return StepFree();
  if (dice < 44) return StepOperator();
  if (dice < 70) return StepNest();
  if (dice < 74) return StepList();
  if (dice < 80) return StepScope();
  if (dice < 83) return StepEvict();
  if (dice < 85) return StepRestore();
  if (dice < 88) return StepBurst();
  if (dice < 95) return StepHand();
  if (dice < 98) return StepElsewhere();
  StepRare();
}

Bytes Worker::SomeSize() {
  const std::uint64_t dice = Below(10);
  if (dice < 3) return 1 + Below(4096);
  if (dice < 6) return 1 + Below(kMiB);
  if (dice < 9) return kMiB + Below(2 * kMiB);
  if (Chance(30)) return kMiB + Below(here().largest);
  return kMiB + Below(5 * kMiB);
}

StreamId Worker::SomeStream() {
  return here().streams[Below(here().streams.size())];
}

std::unique_ptr<Shadow> Worker::Allocate(Bytes bytes, StreamId stream) {
  const ScopeFrame& frame = CurrentScope();
  // An allocation of an operator's own is made inside it.
  const bool inside = Chance(20);
  if (inside && !engine().EnterOperator(stream, "inner", {})) {
    world_.Complain("an operator without operands was refused");
    return nullptr;
  }
  auto made = Acquire(bytes, stream, frame.lifetime);
  if (inside) LeaveOperator();
  return made;
}

void Worker::StepMalloc(Bytes bytes) {
  if (blocks_.size() >= kMostBlocks) return;
  if (world_.roomy && LiveBytes() >= here().live) return StepFree();
  std::unique_ptr<Shadow> block = Allocate(bytes);
  if (block == nullptr) return;
  blocks_.push_back(std::move(block));
  Shadow& made = *blocks_.back();
  if (Chance(85)) Operate(made.home, {&made}, {true});
}

Bytes Worker::LiveBytes() const {
  Bytes live = 0;
  for (const auto& block : blocks_) live += block->bytes;
  return live;
}

void Worker::StepFree() {
  if (blocks_.empty()) return;
  const std::size_t i = Below(blocks_.size());
  std::swap(blocks_[i], blocks_.back());
  std::unique_ptr<Shadow> block = std::move(blocks_.back());
  blocks_.pop_back();
  Free(std::move(block));
}

// A layer's temporaries: few sizes, one stream, freed soon and asked for
// again. Most come out of bins.
void Worker::StepBurst() {
  const StreamId stream = SomeStream();
  std::vector<std::unique_ptr<Shadow>> live;
  for (std::uint64_t i = 4 + Below(28); i > 0; --i) {
    auto block = Allocate(world_.sizes[Below(world_.sizes.size())], stream);
    if (block == nullptr) break;
    if (Chance(30))
      Operate(Chance(80) ? stream : SomeStream(), {block.get()}, {true});
    live.push_back(std::move(block));
    while (live.size() > 6 || (!live.empty() && Chance(60))) {
      const std::size_t at = Below(live.size());
      std::swap(live[at], live.back());
      Free(std::move(live.back()));
      live.pop_back();
    }
    if (Chance(3)) StepEvict();
  }
  for (auto& block : live) Free(std::move(block));
}

// A block changes hands: whoever takes it frees it, or goes on with it.
void Worker::StepHand() {
  std::unique_ptr<Shadow> block;
  if (Chance(50) && !blocks_.empty() && !blocks_.back()->pool.is_private()) {
    block = std::move(blocks_.back());
    blocks_.pop_back();
    std::lock_guard lock(world_.mutex);
    world_.handed.push_back(std::move(block));
    return;
  }
  {
    std::lock_guard lock(world_.mutex);
    if (world_.handed.empty()) return;
    block = std::move(world_.handed.back());
    world_.handed.pop_back();
  }
  ++tally_.handed;
  if (block->place != place_ && Chance(50)) {
    Copy(*block);
    std::lock_guard lock(world_.mutex);
    world_.handed.push_back(std::move(block));
    return;
  }
  if (block->place != place_ || Chance(70)) return Free(std::move(block));
  blocks_.push_back(std::move(block));
}

void Worker::Free(std::unique_ptr<Shadow> block) {
  for (StreamId stream : block->used) {
    if (stream != block->home &&
        std::find(block->recorded.begin(), block->recorded.end(), stream) ==
            block->recorded.end()) {
      Order(block->place, stream, block->home);
    }
  }
  UseDevice(place_);
  ++tally_.frees;
  tally_.freed_elsewhere += block->place != place_;
  DeviceAllocator& device = *PlaceOf(*block).device;
  if (AllocatedBlock fast; device.FastFree(block->address, &fast)) {
    ++tally_.into_bins;
    return;
  }
  if (Result<AllocatedBlock> freed = device.SlowFree(block->address); !freed) {
    world_.Complain("free failed: " + freed.error().message);
  }
}

void Worker::FreeAll() {
  while (!blocks_.empty()) {
    // Read once more, wherever it is: what the last failure lost is seen, too.
    Shadow& last = *blocks_.back();
    if (last.place == place_) Operate(last.home, {&last}, {false});
    Free(std::move(blocks_.back()));
    blocks_.pop_back();
  }
  LeavePool();
}

void Worker::Operate(StreamId stream, const std::vector<Shadow*>& blocks,
                     const std::vector<bool>& written) {
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    accesses.push_back({blocks[i]->address, blocks[i]->bytes, written[i]});
  }
  ++tally_.operators;
  if (Status status = engine().EnterOperator(stream, "test::op", accesses);
      !status) {
    Nest nest;
    nest.Add(device(), accesses);
    ++tally_.refused_operators;
    NoteRefusal("an operator", here(), status.error(), nest.bytes());
    return;
  }
  Launch(stream, blocks, written);
  LeaveOperator();
  for (Shadow* block : blocks) {
    if (stream == block->home || !Chance(50)) continue;
    AddUnique(block->recorded, stream);
    if (Status s = device().RecordStream(block->address, stream); !s) {
      world_.Complain("record_stream failed: " + s.error().message);
    }
  }
}

void Worker::NoteUsed(Shadow& block, StreamId stream, bool written) {
  if (!written) return AddUnique(block.used, stream);
  // All earlier uses are ordered before this one.
  block.used = {stream};
  block.recorded.clear();
}

void Worker::StepOperator() {
  if (!here().shared.empty() && Chance(30)) {
    Shadow& block = *here().shared[Below(here().shared.size())];
    std::lock_guard lock(block.mutex);
    return Operate(SomeStream(), {&block}, {Chance(40)});
  }
  if (blocks_.empty()) return;
  std::vector<Shadow*> operands;
  std::vector<bool> written;
  const std::size_t count = 1 + Below(std::min<std::size_t>(4, blocks_.size()));
  for (std::size_t i = 0; i < count; ++i) {
    Shadow* block = blocks_[Below(blocks_.size())].get();
    if (std::find(operands.begin(), operands.end(), block) != operands.end()) {
      continue;
    }
    operands.push_back(block);
    written.push_back(Chance(35));
  }
  Operate(SomeStream(), operands, written);
}

void Worker::StepScope() {
  ++tally_.scopes;
  if (ScopeDepth() > 0 && Chance(50)) {
    PopScope();
    return;
  }
  if (ScopeDepth() > 6) return;
  ScopeFrame frame;
  frame.scope = ScopeId{1 + static_cast<std::uint32_t>(Below(
                                static_cast<unsigned>(world_.scope_count)))};
  frame.category = static_cast<Category>(Below(kCategories));
  frame.lifetime =
      Chance(70) ? LifetimeClass::kPersistent
                 : static_cast<LifetimeClass>(Below(
                       world_.roomy ? kEvictableClasses : kLifetimeClasses));
  PushScope(frame);
}

std::vector<AddressRange> Worker::SomeRanges() {
  std::vector<AddressRange> ranges;
  if (blocks_.empty() || Chance(25)) return ranges;  // everything
  for (std::uint64_t i = 0; i <= Below(3); ++i) {
    const Shadow& block = *blocks_[Below(blocks_.size())];
    ranges.push_back({block.address, block.bytes});
  }
  return ranges;
}

void Worker::StepEvict() {
  Result<Bytes> moved = engine().Evict(device(), SomeRanges());
  if (!moved) Judge("evict", moved.error());
}

void Worker::StepRestore() {
  JudgeRestore(engine().Restore(device(), SomeRanges()));
}

void Worker::JudgeRestore(const Result<Bytes>& moved) {
  if (moved || moved.error().code == ErrorCode::kOutOfMemory ||
      (moved.error().code == ErrorCode::kCorrupt && world_.corruption)) {
    return;
  }
  Judge("restore", moved.error());
}

void Worker::Judge(const char* what, const Error& error) {
  if (world_.faults.Explains(error)) return;
  world_.Complain(std::string(what) + " failed: " + error.message);
}

void Worker::StepFault() {
  if (faulty_ > 0) return;
  const bool forever = Chance(30);
  for (std::uint64_t i = 1 + Below(3); i > 0; --i) {
    // Some calls come once in a program, if at all.
    const long nth = Chance(60) ? 1 : 1 + static_cast<long>(Below(6));
    if (!world_.faults.Plan(random_(), nth, forever)) {
      world_.Complain("no such function to fail");
    }
    ++tally_.faults;
  }
  faulty_ = 1 + static_cast<int>(Below(forever ? 8 : 30));
  // Most calls are made by what moves.
  if (Chance(40)) {
    StepEvict();
    StepRestore();
  }
}

void Worker::StepRare() {
  Rig& rig = *world_.rig;
  const std::uint64_t dice = Below(12);
  if (dice < 2) {
    if (Status s = device().EmptyCache(); !s) {
      Judge("empty_cache", s.error());
    }
  } else if (dice < 4 && !world_.roomy) {
    device().SetFraction(here().fraction *
                         (Chance(60) ? 1.0 : 0.5 + 0.1 * Below(5)));
  } else if (dice < 6 && world_.disk) {
    rig.disk_faults().FailWrites(static_cast<int>(1 + Below(2)));
  } else if (dice < 10 && !blocks_.empty()) {
    const Shadow& block = *blocks_[Below(blocks_.size())];
    device().Relabel(
        block.address, block.bytes,
        {ScopeId{static_cast<std::uint32_t>(Below(9))}, Category::kBuffer},
        Chance(50));
  } else if (dice < 11) {
    device().Snapshot();
    engine().Counters();
  } else if (!world_.threaded && !world_.background) {
    if (std::string wrong = rig.Check(); !wrong.empty()) {
      world_.Complain(wrong);
    }
  }
}

}  // namespace stratalloc
