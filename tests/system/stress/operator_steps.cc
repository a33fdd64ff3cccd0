// SPDX-License-Identifier: Apache-2.0
// Worker: operators that take most of the device, in parts. They launch,
// allocate inside, enter further operators, and wait until another thread has
// got on, as `.item()` waits for what others enqueue. While they wait for room
// what they use may leave; whenever they run it is there, with its bytes.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "accounting/scope_stack.h"
#include "tests/system/stress/worker.h"

namespace stratalloc {
namespace {

constexpr int kMostDepth = 3;
// So long an operator waits for the others; somebody always gets on.
constexpr int kMostPolls = 100;
constexpr std::chrono::microseconds kPoll{20};

}  // namespace

bool Worker::FitsAlone(const Place& place, Bytes handles) const {
  const bool own = &place == &world_.places[place_];
  return world_.roomy &&
         handles + place.TransientOfOthers(own) <= place.device->limit();
}

bool Worker::NoteRefusal(const char* what, const Place& place,
                         const Error& error, Bytes handles) {
  const bool room = error.code == ErrorCode::kOutOfMemory;
  if (error.code == ErrorCode::kCorrupt && world_.corruption) {
    ++tally_.poisoned;
  } else if (world_.threaded && !world_.roomy &&
             error.code == ErrorCode::kOusted) {
    ++tally_.ousted;  // by what others allocated that never leaves
  } else if (!room && !world_.faults.Explains(error)) {
    world_.Complain(std::string(what) + " failed strangely: " + error.message);
  } else if (FitsAlone(place, handles)) {
    world_.Complain(std::string(what) +
                    " that fits was refused: " + error.message);
  }
  return room;
}

void Worker::LeaveOperator() {
  engine().LeaveOperator();
  ++world_.left;
}

void Worker::Pick(Nest& nest, Bytes room, std::vector<Shadow*>& operands,
                  std::vector<bool>& written) {
  DeviceAllocator& device = this->device();
  for (int i = 0; i < 24 && !blocks_.empty(); ++i) {
    Shadow* block = blocks_[Below(blocks_.size())].get();
    const Access access{block->address, block->bytes, false};
    if (std::find(operands.begin(), operands.end(), block) != operands.end() ||
        nest.bytes() + nest.Needs(device, {&access, 1}) > room) {
      continue;
    }
    nest.Add(device, {&access, 1});
    operands.push_back(block);
    written.push_back(Chance(40));
  }
}

void Worker::StepNest() {
  Nest nest;
  const Bytes limit = device().limit();
  nest.room = limit - std::min(limit, here().TransientOfOthers(1));
  ++tally_.outermost;
  RunOperator(nest, 0);
  for (auto& block : nest.made) {
    const bool keep = world_.roomy ? LiveBytes() < here().live : Chance(50);
    if (!keep || block->transient || blocks_.size() >= kMostBlocks) {
      Free(std::move(block));
    } else if (Chance(20)) {  // another thread frees it
      std::lock_guard lock(world_.mutex);
      world_.handed.push_back(std::move(block));
    } else {
      blocks_.push_back(std::move(block));
    }
  }
}

// False: it failed for another reason than memory, so what the operators around
// this one use may be away, and they end too.
bool Worker::RunOperator(Nest& nest, int depth) {
  Nest::Operator mine{SomeStream(), {}, {}};
  const Bytes left = nest.room - std::min(nest.room, nest.bytes());
  Pick(nest, nest.bytes() + left * (30 + Below(71)) / 100, mine.operands,
       mine.written);
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < mine.operands.size(); ++i) {
    const Shadow& block = *mine.operands[i];
    accesses.push_back({block.address, block.bytes, mine.written[i]});
  }
  ++tally_.operators;
  if (depth > 0) ++tally_.nested;
  if (Status status = engine().EnterOperator(
          mine.stream, depth == 0 ? "nest" : "nested", accesses);
      !status) {
    ++tally_.refused_operators;
    return NoteRefusal("an operator", here(), status.error(), nest.bytes());
  }
  nest.open.push_back(mine);
  bool goes_on = true;
  for (std::uint64_t i = Below(6); i > 0 && goes_on; --i) {
    const std::uint64_t dice = Below(100);
    if (dice < 30) {
      Launch(mine.stream, mine.operands, mine.written);
    } else if (dice < 75) {
      goes_on = AllocateInside(nest, mine.stream);
    } else if (dice < 88 && depth + 1 < kMostDepth) {
      goes_on = RunOperator(nest, depth + 1);
    } else {
      AwaitOthers();
    }
    // Whatever was waited for, everything that is in use is back.
    for (const Nest::Operator& open : nest.open) {
      if (!goes_on) break;
      Launch(open.stream, open.operands,
             std::vector<bool>(open.operands.size()));
    }
  }
  if (goes_on) Launch(mine.stream, mine.operands, mine.written);
  nest.open.pop_back();
  LeaveOperator();
  return goes_on;
}

std::unique_ptr<Shadow> Worker::Acquire(Bytes bytes, StreamId stream,
                                        LifetimeClass lifetime, Bytes handles) {
  if (handles == 0) handles = Nest::AtMost(bytes);
  // Malloc in its two halves, to count the fast ones.
  DeviceAllocator& device = this->device();
  const ScopeFrame& frame = CurrentScope();
  const Charge charge{frame.scope, frame.category};
  AllocatedBlock fast;
  const bool binned = device.FastMalloc(bytes, stream, lifetime, charge, &fast);
  tally_.from_bins += binned;
  Result<AllocatedBlock> made =
      binned ? fast : device.SlowMalloc({bytes, stream, lifetime, charge});
  ++tally_.mallocs;
  if (!made) {
    ++tally_.refused_mallocs;
    ousted_ = !NoteRefusal("a malloc", here(), made.error(), handles);
    return nullptr;
  }
  if (made->bytes < bytes || made->address % 512 != 0) {
    world_.Complain("malloc returned a block that is too small or unaligned");
  }
  auto block = std::make_unique<Shadow>();
  block->bytes = bytes;
  block->place = place_;
  block->home = stream;
  block->address = made->address;
  if (routed_) block->pool = pool_;
  // Whoever had the memory before is done on this stream only.
  block->used = {block->home};
  return block;
}

bool Worker::AllocateInside(Nest& nest, StreamId stream) {
  Bytes bytes = SomeSize();
  if (nest.bytes() + Nest::AtMost(bytes) > nest.room) bytes = 1 + Below(kMiB);
  const Bytes needs = Nest::AtMost(bytes);
  if (nest.bytes() + needs > nest.room) return true;
  auto lifetime = static_cast<LifetimeClass>(Below(kEvictableClasses));
  const bool transient =
      Chance(40) && nest.transient + needs <= here().transient;
  if (transient) {
    lifetime = LifetimeClass::kTransient;
    nest.transient += needs;
  }
  nest.AddBlock(bytes);
  ++tally_.inside;
  std::unique_ptr<Shadow> block =
      Acquire(bytes, stream, lifetime, nest.bytes());
  if (block == nullptr) return !ousted_;
  block->transient = transient;
  for (std::uint64_t i = Below(3); i > 0; --i) {
    Launch(stream, {block.get()}, {true});
  }
  if (Chance(30)) {  // a temporary; its handles stay in use
    Free(std::move(block));
  } else {
    nest.made.push_back(std::move(block));
  }
  return true;
}

void Worker::AwaitOthers() {
  if (!world_.threaded) return;
  ++tally_.blocked;
  const std::uint64_t seen = world_.left;
  for (int i = 0; i < kMostPolls; ++i) {
    if (world_.left != seen) {
      ++tally_.met;
      return;
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void Worker::Launch(StreamId stream, const std::vector<Shadow*>& blocks,
                    const std::vector<bool>& written) {
  if (blocks.empty()) return;
  UseDevice(blocks[0]->place);
  std::vector<cudasim_access> noted;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Shadow& block = *blocks[i];
    for (StreamId used : block.used) Order(block.place, used, stream);
    noted.push_back({block.address, block.bytes, written[i] ? 1 : 0});
    if (world_.rig->IsAway(block.address, block.bytes)) {
      world_.Complain("what an operator uses is away");
      return;
    }
  }
  CUstream on = reinterpret_cast<CUstream>(Raw(stream));
  cudasim_begin_operator(on, "part");
  const long held =
      cudasim_hold_ranges("part", noted.data(), static_cast<int>(noted.size()));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    ++tally_.verified;
    if (!blocks[i]->Holds()) {
      world_.Complain("bytes changed inside an operator");
    }
    if (written[i]) blocks[i]->Fill(random_() | 1);
  }
  cudasim_release_ranges(held);
  cudasim_note_access(on, "part", noted.data(), static_cast<int>(noted.size()));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    NoteUsed(*blocks[i], stream, written[i]);
  }
}

}  // namespace stratalloc
