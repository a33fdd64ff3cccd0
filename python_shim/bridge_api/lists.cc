// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/lists.h"

#include "allocator/blocks/operator_thread.h"
#include "python_shim/core/core.h"
#include "tiering/engine/list_room.h"

namespace stratalloc::core {
namespace {

// The device whose operands may be cut into slices now, for an operator on
// `stream`, or nullptr: one that is not opened has none.
DeviceAllocator* SlicedOn(int device, StreamId stream) {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr || engine->off()) return nullptr;
  // The operator around it holds pins, and frees what it made when it ends.
  if (OperatorThread::ThisThread().depth() > 0) return nullptr;
  Result<DeviceAllocator*> found = Core::Get().Opened(device);
  if (!found) return nullptr;
  // In a capture nothing leaves, and the graph would keep every slice: also
  // where it is a capture of another device's that the stream joined. A capture
  // of another thread's keeps none of them, and a slice waits until it is over.
  if ((*found)->CapturesHere(stream)) return nullptr;
  for (DeviceAllocator* other : Allocator::Get().Opened()) {
    if (other->IsCapturing(stream)) return nullptr;
  }
  return *found;
}

}  // namespace

bool ListFits(int device, StreamId stream, std::span<const Access> accesses,
              Bytes results) {
  DeviceAllocator* allocator = SlicedOn(device, stream);
  return allocator == nullptr || NothingAway(*allocator, results) ||
         FitsAsItIs(*allocator, accesses, results);
}

std::size_t NextSlice(int device, StreamId stream, const ListElements& elements,
                      std::size_t first) {
  DeviceAllocator* allocator = SlicedOn(device, stream);
  if (allocator == nullptr) return elements.ends.size() - first;
  return stratalloc::NextSlice(*allocator, elements, first);
}

std::optional<std::size_t> DoubtfulElement(int device, StreamId stream,
                                           const ListElements& elements) {
  DeviceAllocator* allocator = SlicedOn(device, stream);
  if (allocator == nullptr) return std::nullopt;
  const std::size_t found = Doubtful(*allocator, elements);
  if (found == elements.ends.size()) return std::nullopt;
  return found;
}

}  // namespace stratalloc::core
