// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/fence.h"

#include "allocator/base/planted.h"

namespace stratalloc {

Fence::~Fence() {
  for (EventId event : events_) device_.PutEvent(event);
}

Status Fence::RecordOn(StreamId stream) {
  const Device& device = device_.device();
  if (IsElsewhere(stream)) return device.SynchronizeStream(stream);  // rare
  const EventId event = device_.TakeEvent();
  if (event == kNoEvent) return device.SynchronizeDevice();
  events_.push_back(event);
  const Status status = device.RecordEvent(event, stream);
  // A capture that torch did not begin may have begun since the stream was
  // asked: then this event is the capture's, and to wait for it spoils that.
  if (stream != kDefaultStream && device.IsCapturing(stream)) {
    return Fail(ErrorCode::kUnsupported, kCapturedNow);
  }
  // A stream that was destroyed cannot be asked; the whole device can.
  return status ? Status{} : device.SynchronizeDevice();
}

Result<std::shared_ptr<const Fence>> Fence::Record(const DeviceList& all,
                                                   DeviceAllocator& device,
                                                   std::uint64_t streams,
                                                   std::uint64_t may_wait_for) {
  std::shared_ptr<Fence> fence(new Fence(device));
  if (STRATALLOC_PLANTED(kMissingEvent)) return fence;
  streams = device.streams().MayAsk(streams);
  // A stream turned external since it was asked.
  if ((streams & ~may_wait_for) != 0) {
    return Fail(ErrorCode::kUnsupported, kCapturedNow);
  }
  // More streams than bits, or those of a graph: rule 8, this thread may wait.
  if (streams >> StreamTable::kOverflowBit & 1) {
    STRATALLOC_RETURN_IF_ERROR(device.device().SynchronizeDevice());
  }
  if (streams >> StreamTable::kGraphBit & 1) {
    for (const TieredDevice* one : all) {
      STRATALLOC_RETURN_IF_ERROR(one->allocator->device().SynchronizeDevice());
    }
  }
  if (streams >> StreamTable::kOverflowBit != 0) return fence;
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if ((streams >> bit & 1) == 0) continue;
    STRATALLOC_RETURN_IF_ERROR(fence->RecordOn(device.streams().StreamOf(bit)));
    if (STRATALLOC_PLANTED(kFirstStream)) break;
  }
  return fence;
}

Result<std::shared_ptr<const Fence>> Fence::After(DeviceAllocator& device,
                                                  StreamId stream) {
  std::shared_ptr<Fence> fence(new Fence(device));
  const EventId event = device.TakeEvent();
  if (event == kNoEvent) {
    STRATALLOC_RETURN_IF_ERROR(device.device().SynchronizeStream(stream));
    return fence;
  }
  fence->events_.push_back(event);
  STRATALLOC_RETURN_IF_ERROR(device.device().RecordEvent(event, stream));
  return fence;
}

Result<bool> Fence::IsDone() const {
  if (done_.load()) return true;
  if (const auto failed = failed_.load()) return tl::unexpected(*failed);
  for (EventId event : events_) {
    STRATALLOC_ASSIGN_OR_RETURN(const bool done,
                                device_.device().IsEventDone(event));
    if (!done) return false;
  }
  done_.store(true);
  return true;
}

Status Fence::Wait() const {
  for (EventId event : events_) {
    Status waited = device_.device().SynchronizeEvent(event);
    if (waited) continue;
    failed_.store(std::make_shared<const Error>(waited.error()));
    return waited;
  }
  done_.store(true);
  return {};
}

}  // namespace stratalloc
