// SPDX-License-Identifier: Apache-2.0
// What tests of private pools share: routes and captures, and an allocator that
// is not ours for a pool to get its memory from.
#ifndef STRATALLOC_ALLOCATOR_PRIVATE_POOL_FIXTURE_TEST_H_
#define STRATALLOC_ALLOCATOR_PRIVATE_POOL_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"
#include "allocator/heap/private_pool.h"

namespace stratalloc {

inline constexpr PoolId kGraph{1, 0};
inline constexpr PoolId kUser{0, 1};

class PrivatePoolTest : public DeviceAllocatorTest {
 protected:
  static bool Always(StreamId) { return true; }
  void Route(PoolId id) {
    ASSERT_TRUE(allocator().BeginAllocateToPool(id, &Always).has_value());
  }
  void EndRoute(PoolId id) {
    ASSERT_TRUE(allocator().EndAllocateToPool(id).has_value());
  }
  void Release(PoolId id) {
    ASSERT_TRUE(allocator().ReleasePool(id).has_value());
  }
  PoolId OwnerOf(Address address) {
    for (const SegmentView& view : allocator().Snapshot()) {
      if (address >= view.address && address < view.address + view.bytes) {
        return view.owner;
      }
    }
    ADD_FAILURE() << "no segment holds the address";
    return {};
  }
  Bytes Reserved() {
    return static_cast<Bytes>(Of(allocator().Stats().reserved_bytes).current);
  }
  static void Capture(StreamId stream, bool on) {
    auto* const raw = reinterpret_cast<cudaStream_t>(Raw(stream));
    if (on) {
      ASSERT_EQ(cudaStreamBeginCapture(raw, cudaStreamCaptureModeGlobal),
                cudaSuccess);
      return;
    }
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(raw, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
};

// An allocator that is not ours: spans of one array, and how many are out.
struct Lender {
  std::vector<std::pair<Address, Bytes>> out;
  Address next = Address{1} << 40;  // far from the reservation
  bool empty = false;
  std::function<void()> meanwhile;  // while it is asked, once

  std::shared_ptr<const MemorySource> Source() {
    return std::make_shared<const MemorySource>(MemorySource{
        [this](Bytes bytes, StreamId) -> Result<Address> {
          if (empty) return Fail(ErrorCode::kOutOfMemory, "empty");
          if (meanwhile) std::exchange(meanwhile, nullptr)();
          out.push_back({next, bytes});
          next += 2 * bytes;
          return out.back().first;
        },
        [this](Address address) {
          std::erase_if(
              out, [&](const auto& each) { return each.first == address; });
        }});
  }
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_PRIVATE_POOL_FIXTURE_TEST_H_
