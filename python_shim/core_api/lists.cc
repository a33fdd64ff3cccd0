// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/lists.h"

#include "allocator/operator_thread.h"
#include "python_shim/core.h"
#include "tiering/engine/list_room.h"

namespace stratalloc::core {
namespace {

// The device whose operands may be cut into slices now, or nullptr: one that is
// not opened has none.
DeviceAllocator* SlicedOn(int device) {
  Engine* engine = Core::Get().engine();
  if (engine == nullptr || engine->off()) return nullptr;
  // The operator around it holds pins, and frees what it made when it ends.
  if (OperatorThread::ThisThread().depth() > 0) return nullptr;
  Result<DeviceAllocator*> found = Core::Get().Opened(device);
  if (!found) return nullptr;
  // While one of its streams captures nothing leaves, and a graph would keep
  // every slice: also where it is a capture of another device's that it joined.
  for (DeviceAllocator* other : Allocator::Get().Opened()) {
    if (!other->MayCaptureStill()) continue;
    if (other == *found || (*found)->SomeOwnCapture()) {
      return nullptr;
    }
  }
  return *found;
}

}  // namespace

bool ListFits(int device, std::span<const Access> accesses, Bytes results) {
  DeviceAllocator* allocator = SlicedOn(device);
  return allocator == nullptr || NothingAway(*allocator, results) ||
         FitsAsItIs(*allocator, accesses, results);
}

std::size_t NextSlice(int device, const ListElements& elements,
                      std::size_t first) {
  DeviceAllocator* allocator = SlicedOn(device);
  if (allocator == nullptr) return elements.ends.size() - first;
  return stratalloc::NextSlice(*allocator, elements, first);
}

std::optional<std::size_t> DoubtfulElement(int device,
                                           const ListElements& elements) {
  DeviceAllocator* allocator = SlicedOn(device);
  if (allocator == nullptr) return std::nullopt;
  const std::size_t found = Doubtful(*allocator, elements);
  if (found == elements.ends.size()) return std::nullopt;
  return found;
}

}  // namespace stratalloc::core
