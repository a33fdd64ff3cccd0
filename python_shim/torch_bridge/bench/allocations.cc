// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/allocations.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/bench/both_allocators.h"
#include "python_shim/torch_bridge/bench/thread_time.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 2;
constexpr int kMaxStreams = 4;  // of one thread
constexpr c10::DeviceIndex kDevice = 0;

// The same ones in every round: segments belong to streams.
CUDAStream StreamOf(int threads, int thread, int index) {
  static const auto* const streams = [] {
    auto* made = new std::vector<CUDAStream>;
    for (int i = 0; i < kMaxThreads * kMaxStreams; ++i) {
      made->push_back(c10::cuda::getStreamFromPool(false, kDevice));
    }
    return made;
  }();
  if (threads == 1 && index == 0) return c10::cuda::getDefaultCUDAStream(0);
  return (*streams)[static_cast<size_t>(thread * kMaxStreams + index)];
}

// work(thread), in as many threads, begun together: nanoseconds, see the
// header.
template <typename Work>
double Timed(int threads, const Work& work) {
  TORCH_CHECK(threads >= 1 && threads <= kMaxThreads, "one or two threads");
  std::array<Clock::time_point, kMaxThreads> began, ended;
  auto run = [&](int thread) {
    began[thread] = Clock::now();
    work(thread);
    ended[thread] = Clock::now();
  };
  if (threads == 1) {
    const double before = ThreadCpuNanoseconds();
    work(0);
    return ThreadCpuNanoseconds() - before;
  } else {
    std::atomic<int> ready{0};
    std::array<std::exception_ptr, kMaxThreads> failed{};
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        ready.fetch_add(1);
        while (ready.load() < threads) sched_yield();
        try {
          run(i);
        } catch (...) {
          failed[i] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : running) thread.join();
    for (const std::exception_ptr& error : failed) {
      if (error != nullptr) std::rethrow_exception(error);
    }
  }
  const std::chrono::duration<double, std::nano> taken =
      *std::max_element(ended.begin(), ended.begin() + threads) -
      *std::min_element(began.begin(), began.begin() + threads);
  return taken.count();
}

// Restores the calling thread's current stream.
class StreamScope {
 public:
  StreamScope() : before_(c10::cuda::getCurrentCUDAStream(kDevice)) {}
  ~StreamScope() { c10::cuda::setCurrentCUDAStream(before_); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  const CUDAStream before_;
};

// Where one thread puts blocks for another: a ring of kSlots.
class Belt {
 public:
  void Put(c10::DataPtr data) {
    const uint64_t at = put_.load(std::memory_order_relaxed);
    Wait([&] { return at - taken_.load(std::memory_order_acquire) < kSlots; });
    slots_[at % kSlots] = std::move(data);
    put_.store(at + 1, std::memory_order_release);
  }
  void FreeNext() {
    const uint64_t at = taken_.load(std::memory_order_relaxed);
    Wait([&] { return put_.load(std::memory_order_acquire) > at; });
    slots_[at % kSlots].clear();
    taken_.store(at + 1, std::memory_order_release);
  }

 private:
  static constexpr uint64_t kSlots = 64;
  template <typename Condition>
  static void Wait(const Condition& condition) {
    // A few looks, then the other thread may need this core.
    for (int looks = 0; !condition(); ++looks) {
      if (looks >= 64) sched_yield();
    }
  }

  std::array<c10::DataPtr, kSlots> slots_;
  alignas(64) std::atomic<uint64_t> put_{0};
  alignas(64) std::atomic<uint64_t> taken_{0};
};

void RunOperations(CUDAAllocator* allocator,
                   const stratalloc_bench_operation* operations, uint64_t count,
                   const std::vector<CUDAStream>& streams,
                   std::vector<c10::DataPtr>& data) {
  int current = 0;
  c10::cuda::setCurrentCUDAStream(streams[0]);
  for (uint64_t i = 0; i < count; ++i) {
    const stratalloc_bench_operation& operation = operations[i];
    switch (operation.kind) {
      case 0:
        if (operation.stream != current) {
          current = operation.stream;
          c10::cuda::setCurrentCUDAStream(streams[operation.stream]);
        }
        data[operation.block] = allocator->allocate(operation.size);
        break;
      case 1:
        data[operation.block].clear();
        break;
      case 2:
        allocator->recordStream(data[operation.block],
                                streams[operation.stream]);
        break;
      default:
        allocator->emptyCache();
    }
  }
}

}  // namespace
}  // namespace stratalloc

int stratalloc_bench_prepare(int history, uint64_t entries, char* message,
                             int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    for (const int native : {0, 1}) {
      auto* const allocator = stratalloc::AllocatorFor(native);
      allocator->recordHistory(
          history != 0, nullptr, entries,
          c10::CachingDeviceAllocator::RecordContext::NEVER,
          /*clearHistory=*/true, {});
      allocator->emptyCache();
    }
  });
}

int stratalloc_bench_pairs(int native, uint64_t size, int pairs, int threads,
                           double* nanoseconds, char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    c10::Allocator* const allocator = stratalloc::AllocatorFor(native);
    const stratalloc::StreamScope scope;
    *nanoseconds = stratalloc::Timed(threads, [&](int thread) {
      c10::cuda::setCurrentCUDAStream(stratalloc::StreamOf(threads, thread, 0));
      for (int i = 0; i < pairs; ++i) {
        const c10::DataPtr data = allocator->allocate(size);
      }
    });
  });
}

int stratalloc_bench_handover(int native, uint64_t size, int pairs,
                              double* nanoseconds, char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    c10::Allocator* const allocator = stratalloc::AllocatorFor(native);
    stratalloc::Belt belt;
    *nanoseconds = stratalloc::Timed(2, [&](int thread) {
      if (thread == 0) {
        for (int i = 0; i < pairs; ++i) belt.Put(allocator->allocate(size));
      } else {
        for (int i = 0; i < pairs; ++i) belt.FreeNext();
      }
    });
  });
}

int stratalloc_bench_operations(int native,
                                const stratalloc_bench_operation* operations,
                                uint64_t count, uint64_t blocks, int streams,
                                int threads, double* nanoseconds, char* message,
                                int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    TORCH_CHECK(streams >= 1 && streams <= stratalloc::kMaxStreams,
                "one to four streams");
    for (uint64_t i = 0; i < count; ++i) {
      TORCH_CHECK(operations[i].stream < streams &&
                      (operations[i].kind == 3 || operations[i].block < blocks),
                  "operation ", i, " has a block or stream out of range");
    }
    auto* const allocator = stratalloc::AllocatorFor(native);
    const stratalloc::StreamScope scope;
    TORCH_CHECK(threads >= 1 && threads <= stratalloc::kMaxThreads,
                "one or two threads");
    std::vector<std::vector<c10::DataPtr>> data(static_cast<size_t>(threads));
    std::vector<std::vector<c10::cuda::CUDAStream>> used(data.size());
    for (int thread = 0; thread < threads; ++thread) {
      data[thread].resize(blocks);
      for (int i = 0; i < streams; ++i) {
        used[thread].push_back(stratalloc::StreamOf(threads, thread, i));
      }
    }
    *nanoseconds = stratalloc::Timed(threads, [&](int thread) {
      stratalloc::RunOperations(allocator, operations, count, used[thread],
                                data[thread]);
    });
  });
}
