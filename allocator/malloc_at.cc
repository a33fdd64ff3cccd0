// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: a block at an address that the caller names.
#include <utility>

#include "allocator/device_allocator.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

// Labels the events of one call with what native's history calls it.
class AtAddress {
 public:
  AtAddress() { History::InternalMetadata() = "mallocWithAddress"; }
  ~AtAddress() { History::InternalMetadata().clear(); }
  AtAddress(const AtAddress&) = delete;
  AtAddress& operator=(const AtAddress&) = delete;
};

}  // namespace

// As native: the block in front is handed out, too, and freed at once, so that
// statistics and history have the same numbers.
Result<AllocatedBlock> DeviceAllocator::MallocAt(const MallocRequest& request,
                                                 Address address) {
  const Bytes size = Settings::Get().Round(request.size);
  MutexLock lock(p_.mutex);
  const AtAddress label;
  p_.blocks.Process();
  p_.arrivals.Settle();
  p_.blocks.EmptyBins();
  Block* block = p_.heap.BlockAt(address);
  if (block == nullptr || block->state != BlockState::kFree ||
      block->end() - address < size) {
    return Fail(ErrorCode::kNotFound, "nothing so large is cached there");
  }
  const PoolKey& key = block->segment->pool->key();
  const PoolId owner =
      p_.routes.MayRoute() ? p_.captures.RouteOf(request.stream) : PoolId{};
  if (key.stream != request.stream || key.kind != KindOf(size) ||
      key.owner != owner) {
    return Fail(ErrorCode::kNotFound, "another pool has what is cached there");
  }
  const Bytes in_front = address - block->address;
  if (in_front > 0 && p_.blocks.HandedOutOf(*block, in_front) != in_front) {
    return Fail(ErrorCode::kNotFound, "its pool does not split blocks");
  }
  STRATALLOC_RETURN_IF_ERROR(
      p_.accounts.Admit(request.charge, in_front + size));
  Block* front = nullptr;
  if (in_front > 0) {
    front = p_.blocks.HandOut(block, in_front, in_front, request.charge);
    block = p_.heap.BlockAt(address);
  }
  block = p_.blocks.HandOut(block, size, request.size, request.charge);
  const AllocatedBlock answer =
      AnswerLocked(block->address, block->size, request.charge);
  if (front != nullptr) p_.blocks.Free(front);
  return answer;
}

}  // namespace stratalloc
