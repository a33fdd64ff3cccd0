// SPDX-License-Identifier: Apache-2.0
// The fixture of the engine's tests: a rig, layers of one handle each, and
// threads that are inside an operator.
#ifndef STRATALLOC_TIERING_ENGINE_ENGINE_FIXTURE_TEST_H_
#define STRATALLOC_TIERING_ENGINE_ENGINE_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "tiering/engine/rig_test.h"

namespace stratalloc {

inline constexpr Bytes kHandle = 2 * kMiB;

// Polls, because what it waits for is another thread's progress.
template <typename F>
bool Eventually(F&& happened) {
  const std::int64_t give_up = NowNs() + 60'000'000'000;
  while (!happened()) {
    if (NowNs() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

// A malloc that takes nothing, whatever leaves for it.
class Unserved final : public MemoryRequest {
 public:
  explicit Unserved(Bytes missing) : missing_(missing) {}
  bool Take() override { return false; }
  Bytes Missing() override { return missing_; }
  bool IsHopeless() override { return false; }
  void Fail(Error) override {}

 private:
  const Bytes missing_;
};

// A thread inside an operator on `accesses`, until it is told to leave.
class Busy {
 public:
  Busy(Engine& engine, std::vector<Access> accesses)
      : thread_([this, &engine, accesses] {
          ok_ = engine.EnterOperator(kDefaultStream, "busy", accesses)
                    .has_value();
          inside_ = true;
          while (!leave_) std::this_thread::yield();
          if (ok_) engine.LeaveOperator();
        }) {
    while (!inside_) std::this_thread::yield();
    EXPECT_TRUE(ok_);
  }
  ~Busy() { Leave(); }
  void Leave() {
    leave_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> ok_{false}, inside_{false}, leave_{false};
  std::thread thread_;
};

class EngineTest : public testing::Test {
 protected:
  void Open(const Rig::Options& options) {
    auto rig = Rig::Make(options);
    ASSERT_TRUE(rig.has_value()) << rig.error().message;
    rig_ = std::move(*rig);
  }
  void TearDown() override {
    if (rig_ != nullptr) {
      EXPECT_EQ(rig_->Close(), "");
    }
  }
  Address Malloc(Bytes bytes, StreamId stream = kDefaultStream,
                 LifetimeClass lifetime = LifetimeClass::kPersistent) {
    auto address = rig_->Malloc(bytes, stream, lifetime);
    EXPECT_TRUE(address.has_value()) << address.error().message;
    return address ? *address : 0;
  }
  void Write(Address address, Bytes bytes, std::uint64_t seed) {
    Status status = rig_->Write(address, bytes, seed);
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  void ExpectReads(Address address, Bytes bytes, std::uint64_t seed) {
    Result<bool> reads = rig_->Reads(address, bytes, seed);
    ASSERT_TRUE(reads.has_value()) << reads.error().message;
    EXPECT_TRUE(*reads);
  }
  Bytes Evict() {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  Bytes Restore() {
    Result<Bytes> moved = rig_->engine().Restore(rig_->device(), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  void Free(Address address) {
    EXPECT_TRUE(rig_->device().Free(address).has_value());
  }

  Bytes EvictOnly(Address address, Bytes bytes) {
    const AddressRange range{address, bytes};
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(), {&range, 1});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  EngineCounters Counters() { return rig_->engine().Counters(); }
  // `n` blocks of one handle each, written with seeds 1, 2, ...
  std::vector<Address> Layers(int n) {
    std::vector<Address> layers;
    for (int i = 0; i < n; ++i) {
      layers.push_back(Malloc(kHandle));
      Write(layers.back(), kHandle, static_cast<std::uint64_t>(i + 1));
    }
    return layers;
  }
  void ExpectLayers(const std::vector<Address>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      ExpectReads(layers[i], kHandle, i + 1);
    }
  }
  void FreeAll(const std::vector<Address>& layers) {
    for (Address layer : layers) Free(layer);
  }

  std::unique_ptr<Rig> rig_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ENGINE_FIXTURE_TEST_H_
