// SPDX-License-Identifier: Apache-2.0
// The engine on the simulated device: bytes leave and return bit for bit, at
// the same address, in every way the state table allows.
#include "tiering/engine/engine.h"

#include <gtest/gtest.h>

#include "tiering/engine/rig_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;

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

  std::unique_ptr<Rig> rig_;
};

TEST_F(EngineTest, BytesComeBackAtTheSameAddress) {
  Open({});
  const Address a = Malloc(5 * kMiB), b = Malloc(1000);
  Write(a, 5 * kMiB, 1);
  Write(b, 1000, 2);
  EXPECT_EQ(Evict(), 4 * kHandle);
  EXPECT_EQ(rig_->StateOf(a), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  ExpectReads(a, 5 * kMiB, 1);
  EXPECT_EQ(rig_->StateOf(b), HandleState::kHost);
  ExpectReads(b, 1000, 2);
  EXPECT_EQ(rig_->Check(), "");
  Free(a);
  Free(b);
}

}  // namespace
}  // namespace stratalloc
