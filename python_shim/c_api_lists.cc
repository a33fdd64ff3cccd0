// SPDX-License-Identifier: Apache-2.0
// C API: list operators and their slices.
#include <vector>

#include "allocator/operator_thread.h"
#include "python_shim/core.h"
#include "tiering/engine/list_room.h"

namespace stratalloc {
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

std::vector<Access> AccessesOf(const stratalloc_access* accesses, int count) {
  std::vector<Access> list;
  list.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    list.push_back(
        {accesses[i].address, accesses[i].bytes, accesses[i].written != 0});
  }
  return list;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_list_fits(int device, const stratalloc_access* accesses,
                         int count, uint64_t results) {
  DeviceAllocator* allocator = SlicedOn(device);
  if (allocator == nullptr || NothingAway(*allocator, results)) return 1;
  return FitsAsItIs(*allocator, AccessesOf(accesses, count), results) ? 1 : 0;
}

int stratalloc_list_slice(int device, const stratalloc_access* accesses,
                          const int* ends, const uint64_t* results,
                          int elements, int first) {
  DeviceAllocator* allocator = SlicedOn(device);
  if (allocator == nullptr) return elements - first;
  const std::vector<Access> list = AccessesOf(accesses, ends[elements - 1]);
  const auto count = static_cast<std::size_t>(elements);
  return static_cast<int>(NextSlice(*allocator,
                                    {list, {ends, count}, {results, count}},
                                    static_cast<std::size_t>(first)));
}

int stratalloc_list_doubtful(int device, const stratalloc_access* accesses,
                             const int* ends, const uint64_t* results,
                             int elements) {
  DeviceAllocator* allocator = SlicedOn(device);
  if (allocator == nullptr) return -1;
  const std::vector<Access> list = AccessesOf(accesses, ends[elements - 1]);
  const auto count = static_cast<std::size_t>(elements);
  const std::size_t found =
      Doubtful(*allocator, {list, {ends, count}, {results, count}});
  return found == count ? -1 : static_cast<int>(found);
}

}  // extern "C"
