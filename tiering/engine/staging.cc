// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/staging.h"

#include <algorithm>

#include "allocator/base/planted.h"

namespace stratalloc {

Status Staging::Open(const Device& device, Bytes bytes, bool is_given) {
  auto memory = std::make_unique<HostTier>(
      HostTier::Options{kBuffers * bytes, device, is_given});
  std::array<HostBuffer, kBuffers> made;
  for (HostBuffer& buffer : made) {
    Result<HostBuffer> taken = memory->Allocate(bytes);
    if (!taken) {
      return Fail(taken.error().code,
                  "the disk tier needs two buffers of " + FormatBytes(bytes) +
                      " of pinned memory: " + taken.error().message);
    }
    buffer = *taken;
  }
  MutexLock lock(mutex_);
  const auto taken = [](const Buffer& buffer) { return buffer.taken; };
  while (std::any_of(buffers_.begin(), buffers_.end(), taken)) {
    put_.Wait(mutex_);
  }
  for (int i = 0; i < kBuffers; ++i) {
    At(i).memory = made[static_cast<std::size_t>(i)];
  }
  memory_.swap(memory);
  return {};
}

Result<Staging::Taken> Staging::Take() {
  EventId event = kNoEvent;
  DeviceAllocator* device = nullptr;
  int index = 0;
  {
    MutexLock lock(mutex_);
    if (memory_ == nullptr) {
      return Fail(ErrorCode::kHostOutOfMemory, "no disk is used");
    }
    while (At(0).taken && At(1).taken) put_.Wait(mutex_);
    // In turn: the one that was used last may still be read.
    index = At(next_).taken ? 1 - next_ : next_;
    next_ = 1 - index;
    At(index).taken = true;
    event = std::exchange(At(index).event, kNoEvent);
    device = At(index).device;
  }
  Taken taken(*this, index);
  if (event == kNoEvent) return taken;
  const Status done = STRATALLOC_PLANTED(kReusedStaging)
                          ? Status{}
                          : device->device().SynchronizeEvent(event);
  if (!done) {
    MutexLock lock(mutex_);
    At(index).event = event;
    return tl::unexpected(done.error());
  }
  device->PutEvent(event);
  return taken;
}

void Staging::Put(int index) {
  MutexLock lock(mutex_);
  At(index).taken = false;
  put_.NotifyAll();
}

Status Staging::Taken::ReadUntil(DeviceAllocator& device, StreamId stream) {
  const EventId event = device.TakeEvent();
  if (event == kNoEvent) return device.device().SynchronizeStream(stream);
  const Status recorded = device.device().RecordEvent(event, stream);
  MutexLock lock(owner_->mutex_);
  Buffer& buffer = owner_->At(index_);
  buffer.event = event;
  buffer.device = &device;
  return recorded;
}

void Staging::Close() {
  MutexLock lock(mutex_);
  for (Buffer& buffer : buffers_) {
    if (buffer.event != kNoEvent) buffer.device->PutEvent(buffer.event);
    buffer.event = kNoEvent;
  }
}

}  // namespace stratalloc
