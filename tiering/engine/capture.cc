// SPDX-License-Identifier: Apache-2.0
// Engine: captures. What a graph reads is known only while it is captured: from
// the operators inside, and from what is pinned when the capture begins.
#include <utility>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "tiering/engine/engine.h"

namespace stratalloc {
namespace {

// The thread's outermost operator that was found to be captured. An operator on
// several devices enters on each with a stream of its own, and the stream of an
// operand may join the capture only inside it.
struct CapturedOperator {
  std::uint64_t epoch = 0;
  DeviceAllocator* device = nullptr;  // whose pool keeps what it uses
  StreamId stream = kDefaultStream;
};
thread_local CapturedOperator captured_operator;

}  // namespace

Status Engine::BeginAllocateToPool(DeviceAllocator& device, PoolId pool,
                                   std::function<bool(StreamId)> filter,
                                   StreamId current,
                                   std::span<const Access> reads) {
  OperatorThread& thread = OperatorThread::ThisThread();
  // A MemPool's route has its streams at once, a capture's when it has begun.
  const bool captures = !filter(current);
  // Before the route: from there on nothing can leave to make room. How much
  // the capture will want nobody knows, so everything leaves that nothing
  // holds; what it uses comes back while it is recorded.
  if (captures && !off() && UnderPressure(device.device().index())) {
    // Where nothing may leave the capture says what it lacks. What is cached
    // goes, too: the graph's pool and operands cannot use it.
    (void)Evict(device, {});
    (void)device.EmptyCache();
  }
  STRATALLOC_RETURN_IF_ERROR(
      EnterOperator(current, "the beginning of a capture", reads));
  const auto begin = [&]() -> Status {
    STRATALLOC_RETURN_IF_ERROR(
        device.BeginAllocateToPool(pool, std::move(filter), current));
    if (!captures || off()) return {};
    // What operators around the capture use, their kernels may read inside
    // without an operator: a compiled graph's call captures what it launches.
    std::vector<HandleUse*> pinned;
    thread.ForEachPin([&](HandleUse& use) { pinned.push_back(&use); });
    if (pinned.empty()) return {};
    device.KeepForPool(pool, pinned);
    // Replays come on any stream, and only this one was ordered behind copies
    // on their way.
    for (const TieredDevice* state : movers_) {
      if (Status arrived = state->allocator->DrainArrivals(); !arrived) {
        // The caller takes a failure for no route.
        (void)device.EndAllocateToPool(pool);
        (void)device.ReleasePool(pool);
        return arrived;
      }
    }
    return {};
  };
  Status begun = begin();
  LeaveOperator();
  return begun;
}

// What is captured runs again whenever the graph is replayed, and then nobody
// asks the guard.
bool Engine::KeepForRoutedCapture(DeviceAllocator& device, StreamId stream,
                                  OperatorThread& thread) {
  const std::uint64_t epoch = thread.epoch.load(std::memory_order_relaxed);
  // All pins of the operator: parts of it that entered before, on other
  // devices, are captured with it.
  if (device.KeepForGraph(stream, thread.pins)) {
    captured_operator = {epoch, &device, stream};
    return true;
  }
  return captured_operator.epoch == epoch &&
         captured_operator.device == &device &&
         device.KeepForGraph(captured_operator.stream, thread.pins);
}

void Engine::KeepForRawCapture(DeviceAllocator& device, StreamId stream,
                               OperatorThread& thread) {
  if (!device.device().IsCapturing(stream)) return;
  device.NoteCapture(stream);
  for (HandleUse* use : thread.pins) {
    for (const TieredDevice* state : movers_) {
      DeviceAllocator& owner = *state->allocator;
      if (owner.table().RefOf(*use).region != nullptr) {
        owner.KeepUntilFreed(*use);
      }
    }
  }
}

}  // namespace stratalloc
