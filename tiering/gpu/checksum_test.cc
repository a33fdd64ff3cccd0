// SPDX-License-Identifier: Apache-2.0
// DeviceChecksum through CudaApi: fatbin, module, launch. Here the simulated
// device runs the kernel's host twin; the same program on a GPU compares the
// kernel itself.
#include "tiering/gpu/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "allocator/device/device.h"
#include "tests/cudasim/control.h"
#include "tiering/gpu/checksum_kernels.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;

class ChecksumTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device) << device.error().message;
    device_.push_back(*device);
    address_ = device_[0].ReserveAddress(kHandle).value();
    handle_ = device_[0].CreateHandle(kHandle).value();
    ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
    ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, device_[0].index()));
    stream_ = device_[0].CreateStream().value();
    ASSERT_EQ(posix_memalign(reinterpret_cast<void**>(&result_), 4096, 4096),
              0);
    ASSERT_TRUE(device_[0].RegisterHost(result_, 4096));
    bytes_.resize(kHandle);
    std::mt19937_64 random(5);
    for (Bytes at = 0; at < kHandle; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes_.data() + at, &word, 8);
    }
  }
  void TearDown() override {
    if (device_.empty()) return;
    cudasim_set_mode(0);
    EXPECT_TRUE(device_[0].SynchronizeDevice());
    EXPECT_TRUE(device_[0].Unmap(address_, kHandle));
    EXPECT_TRUE(device_[0].ReleaseHandle(handle_));
    EXPECT_TRUE(device_[0].FreeAddress(address_, kHandle));
    EXPECT_TRUE(device_[0].UnregisterHost(result_));
    std::free(result_);
  }

  void Upload() {
    ASSERT_TRUE(
        device_[0].CopyToDevice(address_, bytes_.data(), kHandle, stream_));
  }
  std::uint64_t OnDevice(Bytes bytes) {
    const auto checksum = DeviceChecksum::Load(device_[0]);
    EXPECT_TRUE(checksum) << checksum.error().message;
    *result_ = 0;
    const Status launched = checksum->Launch(address_, bytes, result_, stream_);
    EXPECT_TRUE(launched) << launched.error().message;
    EXPECT_TRUE(device_[0].SynchronizeStream(stream_));
    return *result_;
  }

  std::vector<Device> device_;  // Device has no default constructor
  Address address_ = 0;
  PhysicalHandle handle_ = kNoHandle;
  StreamId stream_{};
  std::uint64_t* result_ = nullptr;
  std::vector<char> bytes_;
};

TEST_F(ChecksumTest, TheFatbinIsEmbedded) {
  std::uint32_t magic;
  std::memcpy(&magic, checksum_kernels, sizeof(magic));
  EXPECT_EQ(magic, 0xBA55ED50u);
  EXPECT_GT(checksum_kernels_end - checksum_kernels, 1000);
}

TEST_F(ChecksumTest, DeviceAndHostAgree) {
  Upload();
  for (const Bytes bytes :
       {kHandle, Bytes{8}, Bytes{24}, kMiB + 8, Bytes{65536}}) {
    EXPECT_EQ(OnDevice(bytes), ChecksumOnHost(bytes_.data(), bytes)) << bytes;
  }
  EXPECT_EQ(OnDevice(0), 0u);
}

TEST_F(ChecksumTest, AFlippedByteAndSwappedWordsShow) {
  Upload();
  const std::uint64_t before = OnDevice(kHandle);
  for (const Bytes at : {Bytes{0}, kHandle / 2 + 3, kHandle - 1}) {
    bytes_[at] ^= 1;
    Upload();
    EXPECT_NE(OnDevice(kHandle), before) << at;
    bytes_[at] ^= 1;
  }
  std::swap_ranges(bytes_.begin(), bytes_.begin() + 8, bytes_.end() - 8);
  Upload();
  EXPECT_NE(OnDevice(kHandle), before);
  std::swap_ranges(bytes_.begin(), bytes_.begin() + 8, bytes_.end() - 8);
  Upload();
  EXPECT_EQ(OnDevice(kHandle), before);
}

TEST_F(ChecksumTest, RefusesPartsOfWords) {
  const auto checksum = DeviceChecksum::Load(device_[0]);
  ASSERT_TRUE(checksum);
  for (const auto& [address, bytes] :
       {std::pair{address_ + 8, kHandle - 8}, std::pair{address_, Bytes{9}}}) {
    const Status refused = checksum->Launch(address, bytes, result_, stream_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

// Memory that is not mapped: the device refuses, the program does not crash.
TEST_F(ChecksumTest, AnUnmappedRangeIsAViolation) {
  const auto checksum = DeviceChecksum::Load(device_[0]);
  ASSERT_TRUE(checksum);
  ASSERT_TRUE(device_[0].Unmap(address_, kHandle));
  cudasim_set_verbose(0);
  cudasim_clear_violations();
  *result_ = 0;
  (void)checksum->Launch(address_, kHandle, result_, stream_);
  EXPECT_EQ(cudasim_violation_count(), 1);
  EXPECT_EQ(*result_, 0u);
  cudasim_clear_violations();
  cudasim_clear_errors();
  cudasim_set_verbose(1);
  ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
  ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, device_[0].index()));
}

// The kernel's read is pending until an edge: unmapping before it is what the
// simulated device must complain about, and after it, not.
TEST_F(ChecksumTest, AnUnmapUnderTheKernelIsAViolation) {
  Upload();
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  const auto checksum = DeviceChecksum::Load(device_[0]);
  ASSERT_TRUE(checksum);
  cudasim_set_mode(1);
  cudasim_set_verbose(0);
  cudasim_clear_violations();
  for (const bool waits : {true, false}) {
    *result_ = 0;
    ASSERT_TRUE(checksum->Launch(address_, kHandle, result_, stream_));
    if (waits) {
      ASSERT_TRUE(device_[0].SynchronizeStream(stream_));
    }
    (void)device_[0].Unmap(address_, kHandle);
    EXPECT_EQ(cudasim_violation_count() > 0, !waits);
    if (waits) {
      ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
      ASSERT_TRUE(
          device_[0].GrantAccess(address_, kHandle, device_[0].index()));
    }
  }
  cudasim_clear_violations();
  cudasim_set_verbose(1);
  cudasim_set_mode(0);
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
  ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, device_[0].index()));
}

}  // namespace
}  // namespace stratalloc
