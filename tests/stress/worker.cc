// SPDX-License-Identifier: Apache-2.0
#include "tests/stress/worker.h"

#include <algorithm>
#include <utility>

#include "accounting/scope_stack.h"

namespace stratalloc {
namespace {

// Calls that a program lets fail, with an error each of them really gives.
struct Fault {
  const char* function;
  int error;
};
constexpr Fault kFaults[] = {
    {"cuMemCreate", 2},
    {"cuMemMap", 2},
    {"cuMemSetAccess", 2},
    {"cuMemSetAccess", 600},
    {"cudaHostRegister", 2},
    {"cudaMemcpyAsync", 999},
    {"cudaEventCreateWithFlags", 2},
    {"cudaEventRecord", 999},
    {"cudaEventQuery", 999},
    {"cudaEventSynchronize", 999},
    {"cudaStreamWaitEvent", 999},
    {"cudaStreamSynchronize", 999},
    {"cuLaunchKernel", 701},
    {"cudaMemGetInfo", 2},
};

CUstream ToDriver(StreamId stream) {
  return reinterpret_cast<CUstream>(Raw(stream));
}

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

Worker::Worker(World& world, std::uint64_t seed)
    : world_(world), random_(seed) {
  cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
}

Worker::~Worker() { cuEventDestroy(event_); }

void Worker::Run(int steps) {
  for (int i = 0; i < steps; ++i) {
    ++tally_.steps;
    Step();
    if (faulty_ > 0 && --faulty_ == 0) cudasim_clear_faults();
  }
  if (faulty_ > 0) cudasim_clear_faults();
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
  if (dice < 83) return StepFault();
  if (dice < 87) return StepBurst();
  if (dice < 91) return StepPool();
  if (dice < 94) return StepHand();
  if (dice < 96 && world_.corruption) {
    world_.rig->engine().TestHook("flip_spill_byte", "");
    return;
  }
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
  if (dice < 97) return StepHand();
  StepRare();
}

Bytes Worker::SomeSize() {
  const std::uint64_t dice = Below(10);
  if (dice < 3) return 1 + Below(4096);
  if (dice < 6) return 1 + Below(kMiB);
  if (dice < 9) return kMiB + Below(2 * kMiB);
  if (Chance(30)) return kMiB + Below(world_.largest);
  return kMiB + Below(5 * kMiB);
}

StreamId Worker::SomeStream() {
  return world_.streams[Below(world_.streams.size())];
}

std::unique_ptr<Shadow> Worker::Allocate(Bytes bytes, StreamId stream) {
  const ScopeFrame& frame = CurrentScope();
  // An allocation of an operator's own is made inside it.
  const bool inside = Chance(20);
  if (inside && !world_.rig->engine().EnterOperator(stream, "inner", {})) {
    world_.Complain("an operator without operands was refused");
    return nullptr;
  }
  auto made = Acquire(bytes, stream, frame.lifetime);
  if (inside) LeaveOperator();
  return made;
}

void Worker::StepMalloc(Bytes bytes) {
  if (blocks_.size() >= kMostBlocks) return;
  if (world_.roomy && LiveBytes() >= world_.live) return StepFree();
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
  if (Chance(70)) return Free(std::move(block));
  blocks_.push_back(std::move(block));
}

void Worker::Free(std::unique_ptr<Shadow> block) {
  for (StreamId stream : block->used) {
    if (stream != block->home &&
        std::find(block->recorded.begin(), block->recorded.end(), stream) ==
            block->recorded.end()) {
      Order(stream, block->home);
    }
  }
  ++tally_.frees;
  DeviceAllocator& device = world_.rig->device();
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
    Free(std::move(blocks_.back()));
    blocks_.pop_back();
  }
  LeavePool();
}

void Worker::Order(StreamId earlier, StreamId later) {
  if (earlier == later) return;
  cuEventRecord(event_, ToDriver(earlier));
  cuStreamWaitEvent(ToDriver(later), event_, 0);
}

void Worker::Operate(StreamId stream, const std::vector<Shadow*>& blocks,
                     const std::vector<bool>& written) {
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Shadow& block = *blocks[i];
    for (StreamId used : block.used) Order(used, stream);
    accesses.push_back({block.address, block.bytes, written[i]});
  }
  ++tally_.operators;
  Status status = world_.rig->Operate(stream, accesses, [&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Shadow& block = *blocks[i];
      ++tally_.verified;
      if (!block.Holds()) world_.Complain("bytes of a block changed");
      if (written[i]) block.Fill(random_() | 1);
    }
  });
  if (!status) {
    Nest nest;
    nest.Add(world_.rig->device(), accesses);
    ++tally_.refused_operators;
    NoteRefusal("an operator", status.error(), nest.bytes());
    return;
  }
  ++world_.left;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Shadow& block = *blocks[i];
    NoteUsed(block, stream, written[i]);
    if (stream != block.home && Chance(50)) {
      AddUnique(block.recorded, stream);
      if (Status s = world_.rig->device().RecordStream(block.address, stream);
          !s) {
        world_.Complain("record_stream failed: " + s.error().message);
      }
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
  if (!world_.shared.empty() && Chance(30)) {
    Shadow& block = *world_.shared[Below(world_.shared.size())];
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
  frame.lifetime = Chance(70) ? LifetimeClass::kPersistent
                              : static_cast<LifetimeClass>(Below(
                                    kLifetimeClasses - (world_.roomy ? 1 : 0)));
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
  Result<Bytes> moved =
      world_.rig->engine().Evict(world_.rig->device(), SomeRanges());
  if (!moved && !world_.faults) {
    world_.Complain("evict failed: " + moved.error().message);
  }
}

void Worker::StepRestore() {
  Result<Bytes> moved =
      world_.rig->engine().Restore(world_.rig->device(), SomeRanges());
  if (moved || world_.faults) return;
  const ErrorCode code = moved.error().code;
  if (code != ErrorCode::kOutOfMemory &&
      !(code == ErrorCode::kCorrupt && world_.corruption)) {
    world_.Complain("restore failed: " + moved.error().message);
  }
}

void Worker::StepFault() {
  if (!world_.faults || faulty_ > 0) return;
  const Fault& fault = kFaults[Below(std::size(kFaults))];
  const bool forever = Chance(20);
  if (cudasim_fail(fault.function, 1 + static_cast<long>(Below(6)), fault.error,
                   forever ? 1 : 0) != 0) {
    world_.Complain(std::string("no such function: ") + fault.function);
  }
  ++tally_.faults;
  faulty_ = 1 + static_cast<int>(Below(forever ? 4 : 20));
}

void Worker::StepRare() {
  Rig& rig = *world_.rig;
  const std::uint64_t dice = Below(12);
  if (dice < 2) {
    if (Status s = rig.device().EmptyCache(); !s && !world_.faults) {
      world_.Complain("empty_cache failed: " + s.error().message);
    }
  } else if (dice < 4 && !world_.roomy) {
    rig.device().SetFraction(world_.fraction *
                             (Chance(60) ? 1.0 : 0.5 + 0.1 * Below(5)));
  } else if (dice < 6 && world_.disk) {
    rig.engine().TestHook("fail_disk", std::to_string(1 + Below(2)));
  } else if (dice < 10 && !blocks_.empty()) {
    const Shadow& block = *blocks_[Below(blocks_.size())];
    rig.device().Relabel(
        block.address, block.bytes,
        {ScopeId{static_cast<std::uint32_t>(Below(9))}, Category::kBuffer},
        Chance(50));
  } else if (dice < 11) {
    rig.device().Snapshot();
    rig.engine().Counters();
  } else if (!world_.threaded && !world_.background) {
    if (std::string wrong = rig.Check(); !wrong.empty()) {
      world_.Complain(wrong);
    }
  }
}

}  // namespace stratalloc
