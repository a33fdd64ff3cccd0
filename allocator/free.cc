// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: what else is done with a block, and free memory, than to
// hand it out.
#include <algorithm>
#include <utility>

#include "allocator/device_allocator.h"

namespace stratalloc {

Result<AllocatedBlock> DeviceAllocator::SlowFree(Address address) {
  MutexLock lock(p_.mutex);
  Block* block = p_.heap.Find(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound, "not the base of an allocated block");
  }
  const Bytes size = block->size;
  const Charge charge = block->charge;
  p_.blocks.Free(block);
  return AnswerLocked(address, size, charge);
}

Status DeviceAllocator::RecordStream(Address address, StreamId stream) {
  MutexLock lock(p_.mutex);
  Block* block = p_.heap.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kAllocated) {
    return Fail(ErrorCode::kNotFound,
                "record_stream on memory that is not allocated here");
  }
  if (block->segment->evictable()) {
    const std::uint64_t bit = std::uint64_t{1} << p_.streams.BitOf(stream);
    ForEachHandleOf(
        *block, [&](HandleRef handle, Bytes) { handle.use().NoteUnseen(bit); });
  }
  if (stream == block->segment->pool->key().stream) return {};
  if (std::find(block->streams.begin(), block->streams.end(), stream) ==
      block->streams.end()) {
    block->streams.push_back(stream);
    block->streams_noted = true;
  }
  if (p_.routes.MayRoute() && p_.captures.Note(stream, /*works_on_it=*/false)) {
    p_.frees.NoteCaptured(block, stream);
  }
  return {};
}

bool DeviceAllocator::ContainsUnmanaged(Address address) {
  if (!p_.unmanaged.some()) return false;
  MutexLock lock(p_.mutex);
  return p_.unmanaged.Contains(address);
}

void DeviceAllocator::Relabel(Address address, Bytes bytes, Charge charge,
                              bool keep_category) {
  MutexLock lock(p_.mutex);
  const Address hi = address + std::max<Bytes>(bytes, 1);
  for (Block* b = p_.heap.BlockAt(address); b != nullptr && b->address < hi;
       b = b->next) {
    // What was given up and only waits for its streams is nobody's.
    if (b->state != BlockState::kAllocated) continue;
    p_.blocks.Relabel(*b, charge, keep_category);
  }
}

void DeviceAllocator::EndFrame(FrameId id) {
  MutexLock lock(p_.mutex);
  p_.blocks.EndFrame(id);
}

Status DeviceAllocator::EmptyCache(bool counted_in_routes) {
  bool counted = true;
  {
    MutexLock lock(p_.mutex);
    if (p_.captures.UnderWay()) return {};  // the next call, after it, will
    counted = counted_in_routes || !p_.routes.MayRoute();
  }
  if (Status status = waits_.SynchronizePendingFrees(counted); !status) {
    return status;
  }
  waits_.GiveToDriver();
  if (reclaimer_ != nullptr) reclaimer_->OnEmptyCache(p_.device.index());
  return {};
}

}  // namespace stratalloc
