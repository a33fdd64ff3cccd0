// SPDX-License-Identifier: Apache-2.0
// DeviceChecksum through CudaApi: fatbin, module, launch. Here the simulated
// device runs the kernel's host twin; the same program on a GPU compares the
// kernel itself.
#include "tiering/gpu/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "allocator/cuda/device.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/kernel_image.h"
#include "tiering/gpu/checksum_kernels.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

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
    ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, {}));
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
  Result<DeviceChecksum> Load() {
    return DeviceChecksum::Load(device_[0], stream_, result_);
  }
  Status Launch(const DeviceChecksum& checksum, Address address, Bytes bytes) {
    const DeviceChecksum::Range range{address, bytes};
    return checksum.Launch({&range, 1}, result_, stream_);
  }
  std::uint64_t OnDevice(Bytes bytes) {
    const auto checksum = Load();
    EXPECT_TRUE(checksum) << checksum.error().message;
    const Status launched = Launch(*checksum, address_, bytes);
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

TEST_F(ChecksumTest, ThereIsCodeForEveryGpu) {
  const cudasim::KernelImage image = cudasim::ReadKernelImage(checksum_kernels);
  EXPECT_THAT(image.cubins, UnorderedElementsAre(75, 80, 86, 89, 90, 100, 120));
  EXPECT_EQ(image.oldest_ptx, 75);
}

// This and the next come before the others: a process loads the kernel once.
TEST_F(ChecksumTest, WithoutCodeForThisGpuTheErrorSaysWhatThereIs) {
  ASSERT_EQ(
      cudasim_apply_profile(0, R"({"compute_major": 7, "compute_minor": 0})"),
      0);
  const auto checksum = Load();
  ASSERT_FALSE(checksum);
  EXPECT_THAT(checksum.error().message,
              HasSubstr("CUDA_ERROR_NO_BINARY_FOR_GPU"));
  EXPECT_THAT(checksum.error().message, HasSubstr("7.5 and newer"));
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

// Code that is loaded when it is first launched finds no memory there.
TEST_F(ChecksumTest, ACardThatIsFullLaterHasTheCodeAlready) {
  cudasim_keep_for_code(2 * kMiB);
  const auto checksum = Load();
  ASSERT_TRUE(checksum) << checksum.error().message;
  cudasim_take_memory(0, cudasim_capacity(0));
  ASSERT_EQ(device_[0].GetMemoryInfo()->free, 0u);
  Upload();
  ASSERT_TRUE(Launch(*checksum, address_, kHandle));
  ASSERT_TRUE(device_[0].SynchronizeStream(stream_));
  EXPECT_EQ(*result_, ChecksumOnHost(bytes_.data(), kHandle));
  cudasim_take_memory(0, 0);
  cudasim_keep_for_code(0);
}

// Kernels there cannot use memory of the host, pinned or not.
TEST_F(ChecksumTest, UnderWsl2NoKernelWritesMemoryOfTheHost) {
  ASSERT_EQ(cudasim_set_card(0, "wsl2"), 0);
  Upload();
  EXPECT_EQ(OnDevice(kHandle), ChecksumOnHost(bytes_.data(), kHandle));
  EXPECT_EQ(cudasim_violation_count(), 0);
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

// What a model of a card says of eviction counts checksums, too.
TEST_F(ChecksumTest, OnAModelledCardItTakesTheTimeOfReading) {
  ASSERT_EQ(cudasim_set_card(0, "h200"), 0);
  Upload();
  const auto checksum = Load();
  ASSERT_TRUE(checksum) << checksum.error().message;
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  const double before = cudasim_virtual_total("compute_busy_ns");
  ASSERT_TRUE(Launch(*checksum, address_, kHandle));
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  const double bytes_per_ns = cudasim_card_figure(0, "hbm_gb_per_s") *
                              cudasim_card_figure(0, "memory_efficiency");
  EXPECT_NEAR(cudasim_virtual_total("compute_busy_ns") - before,
              kHandle / bytes_per_ns, 20);
  ASSERT_EQ(cudasim_set_card(0, "generic"), 0);
}

// A kernel that does not run leaves a wrong sum behind it: 0.
TEST_F(ChecksumTest, WhoCannotGoToTheDeviceGetsNoSum) {
  const Device there = Device::Open(DeviceIndex{1}).value();
  const StreamId stream = there.CreateStream().value();
  const auto checksum = DeviceChecksum::Load(there, stream, result_);
  ASSERT_TRUE(checksum) << checksum.error().message;
  const DeviceChecksum::Range nothing{address_, 0};
  ASSERT_EQ(cudasim_fail("cuCtxPushCurrent", 1, 999, /*forever=*/1), 0);
  EXPECT_TRUE(checksum->Launch({&nothing, 1}, result_, stream)) << "no kernel";
  const DeviceChecksum::Range range{address_, kHandle};
  const Status launched = checksum->Launch({&range, 1}, result_, stream);
  cudasim_clear_faults();
  ASSERT_FALSE(launched);
  EXPECT_THAT(launched.error().message, HasSubstr("cuCtxPushCurrent"));
  EXPECT_TRUE(there.SynchronizeStream(stream));
  there.DestroyStream(stream);
}

TEST_F(ChecksumTest, SeveralRangesAtATimeGiveSeveralResults) {
  Upload();
  const auto checksum = Load();
  ASSERT_TRUE(checksum);
  std::vector<DeviceChecksum::Range> ranges;
  for (std::size_t i = 0; i < DeviceChecksum::kMost; ++i) {
    ranges.push_back({address_ + i * 4096, 4096 - i * 8});
  }
  // Twice: what is there from the last time does not count.
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(checksum->Launch(ranges, result_, stream_));
    ASSERT_TRUE(device_[0].SynchronizeStream(stream_));
    for (std::size_t k = 0; k < ranges.size(); ++k) {
      EXPECT_EQ(result_[k],
                ChecksumOnHost(bytes_.data() + k * 4096, ranges[k].bytes));
    }
  }
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
  const auto checksum = Load();
  ASSERT_TRUE(checksum);
  for (const auto& [address, bytes] :
       {std::pair{address_ + 8, kHandle - 8}, std::pair{address_, Bytes{9}}}) {
    const Status refused = Launch(*checksum, address, bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

// Memory that is not mapped: the device refuses, the program does not crash.
TEST_F(ChecksumTest, AnUnmappedRangeIsAViolation) {
  const auto checksum = Load();
  ASSERT_TRUE(checksum);
  ASSERT_TRUE(device_[0].Unmap(address_, kHandle));
  cudasim_set_verbose(0);
  cudasim_clear_violations();
  *result_ = 0;
  (void)Launch(*checksum, address_, kHandle);
  EXPECT_EQ(cudasim_violation_count(), 1);
  EXPECT_EQ(*result_, 0u);
  cudasim_clear_violations();
  cudasim_clear_errors();
  cudasim_set_verbose(1);
  ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
  ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, {}));
}

// The kernel's read is pending until an edge: unmapping before it is what the
// simulated device must complain about, and after it, not.
TEST_F(ChecksumTest, AnUnmapUnderTheKernelIsAViolation) {
  Upload();
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  const auto checksum = Load();
  ASSERT_TRUE(checksum);
  cudasim_set_mode(1);
  cudasim_set_verbose(0);
  cudasim_clear_violations();
  for (const bool waits : {true, false}) {
    *result_ = 0;
    ASSERT_TRUE(Launch(*checksum, address_, kHandle));
    if (waits) {
      ASSERT_TRUE(device_[0].SynchronizeStream(stream_));
    }
    (void)device_[0].Unmap(address_, kHandle);
    EXPECT_EQ(cudasim_violation_count() > 0, !waits);
    if (waits) {
      ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
      ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, {}));
    }
  }
  cudasim_clear_violations();
  cudasim_set_verbose(1);
  cudasim_set_mode(0);
  ASSERT_TRUE(device_[0].SynchronizeDevice());
  ASSERT_TRUE(device_[0].Map(address_, kHandle, handle_));
  ASSERT_TRUE(device_[0].GrantAccess(address_, kHandle, {}));
}

}  // namespace
}  // namespace stratalloc
