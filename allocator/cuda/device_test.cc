// SPDX-License-Identifier: Apache-2.0
// Device over CudaApi over the simulated device linked into this program.
#include "allocator/cuda/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "allocator/cuda/cuda_api.h"
#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_clear_faults();
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device) << device.error().message;
    device_.push_back(*device);
  }
  void TearDown() override {
    cudasim_clear_faults();
    EXPECT_EQ(cudasim_live_handles(), 0);
    EXPECT_EQ(cudasim_live_mappings(), 0);
    EXPECT_EQ(cudasim_live_reservations(), 0);
  }
  const Device& device() const { return device_[0]; }

 private:
  std::vector<Device> device_;  // Device has no default constructor
};

TEST_F(DeviceTest, OpensOnlyDevicesThatExist) {
  EXPECT_EQ(device().index(), DeviceIndex{0});
  EXPECT_EQ(device().granularity(), kHandle);
}

TEST_F(DeviceTest, MapsCopiesAndUnmaps) {
  const Address address = device().ReserveAddress(2 * kHandle).value();
  const PhysicalHandle handle = device().CreateHandle(kHandle).value();
  ASSERT_TRUE(device().Map(address, kHandle, handle));
  ASSERT_TRUE(device().GrantAccess(address, kHandle, {}));
  const StreamId stream = device().CreateStream().value();

  std::vector<char> out(kHandle), back(kHandle);
  for (Bytes i = 0; i < kHandle; ++i) out[i] = static_cast<char>(i * 7);
  ASSERT_TRUE(device().CopyToDevice(address, out.data(), kHandle, stream));
  ASSERT_TRUE(device().CopyToHost(back.data(), address, kHandle, stream));
  ASSERT_TRUE(device().SynchronizeStream(stream));
  EXPECT_EQ(out, back);

  // The same handle at another address shows the same bytes.
  ASSERT_TRUE(device().Unmap(address, kHandle));
  ASSERT_TRUE(device().Map(address + kHandle, kHandle, handle));
  ASSERT_TRUE(device().GrantAccess(address + kHandle, kHandle, {}));
  std::memset(back.data(), 0, kHandle);
  ASSERT_TRUE(
      device().CopyToHost(back.data(), address + kHandle, kHandle, stream));
  ASSERT_TRUE(device().SynchronizeStream(stream));
  EXPECT_EQ(out, back);

  ASSERT_TRUE(device().Unmap(address + kHandle, kHandle));
  ASSERT_TRUE(device().ReleaseHandle(handle));
  ASSERT_TRUE(device().FreeAddress(address, 2 * kHandle));
}

TEST_F(DeviceTest, EventsOrderStreams) {
  const StreamId one = device().CreateStream().value();
  const StreamId two = device().CreateStream().value();
  const EventId event = device().CreateEvent().value();
  ASSERT_TRUE(device().RecordEvent(event, one));
  ASSERT_TRUE(device().StreamWaitEvent(two, event));
  ASSERT_TRUE(device().SynchronizeEvent(event));
  EXPECT_TRUE(device().IsEventDone(event).value());
  EXPECT_FALSE(device().IsCapturing(one));
  device().DestroyEvent(event);
}

TEST_F(DeviceTest, OutOfMemoryKeepsItsCode) {
  ASSERT_EQ(cudasim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, 0), 0);
  const auto refused = device().CreateHandle(kHandle);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(refused.error().message.find("cuMemCreate"), std::string::npos);
  EXPECT_NE(refused.error().message.find("CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos);
  const auto works = device().CreateHandle(kHandle);
  ASSERT_TRUE(works);
  EXPECT_TRUE(device().ReleaseHandle(*works));
}

TEST_F(DeviceTest, AFailedGrantNamesTheCall) {
  const Address address = device().ReserveAddress(kHandle).value();
  const PhysicalHandle handle = device().CreateHandle(kHandle).value();
  ASSERT_TRUE(device().Map(address, kHandle, handle));
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, CUDA_ERROR_INVALID_DEVICE, 0), 0);
  const Status failed = device().GrantAccess(address, kHandle, {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("cuMemSetAccess"), std::string::npos);
  ASSERT_TRUE(device().Unmap(address, kHandle));
  ASSERT_TRUE(device().ReleaseHandle(handle));
  ASSERT_TRUE(device().FreeAddress(address, kHandle));
}

// torch must not find our error in its next cudaGetLastError.
TEST_F(DeviceTest, ErrorsAreNotLeftBehind) {
  ASSERT_EQ(
      cudasim_fail("cudaStreamCreateWithFlags", 1, cudaErrorInvalidValue, 0),
      0);
  EXPECT_FALSE(device().CreateStream());
  EXPECT_EQ(CudaApi::Get().value()->cudaGetLastError(), cudaSuccess);
}

// Driver 580 does not keep "not ready": the last error is the program's own.
TEST_F(DeviceTest, NotReadyLeavesTheProgramsErrorThere) {
  const CudaApi& api = *CudaApi::Get().value();
  const StreamId stream = device().CreateStream().value();
  const EventId event = device().CreateEvent(stream).value();
  void* none = nullptr;
  ASSERT_EQ(api.cudaMalloc(&none, std::size_t{1} << 44),
            cudaErrorMemoryAllocation);
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorNotReady, 0), 0);
  ASSERT_EQ(cudasim_fail("cudaStreamQuery", 1, cudaErrorNotReady, 0), 0);
  EXPECT_FALSE(device().IsEventDone(event).value());
  EXPECT_FALSE(device().IsIdle(stream));
  EXPECT_EQ(api.cudaGetLastError(), cudaErrorMemoryAllocation);
  device().DestroyEvent(event);
  device().DestroyStream(stream);
}

TEST_F(DeviceTest, AFreshThreadNeedsNoSetUp) {
  Status status = Fail(ErrorCode::kDevice, "the thread did not run");
  std::thread other([&] {
    const auto handle = device().CreateHandle(kHandle);
    status = handle ? device().ReleaseHandle(*handle)
                    : tl::unexpected(handle.error());
  });
  other.join();
  EXPECT_TRUE(status) << status.error().message;
}

TEST_F(DeviceTest, AModuleIsLoadedOncePerDeviceForAllItsKernels) {
  static const char fatbin[16] = {};  // the simulated device does not look
  const long before = cudasim_calls("cuModuleLoadData");
  ASSERT_EQ(cudasim_fail("cuModuleGetFunction", 1, CUDA_ERROR_NOT_FOUND, 0), 0);
  EXPECT_FALSE(device().LoadKernel(fatbin, "a_kernel"));
  const auto first = device().LoadKernel(fatbin, "a_kernel");
  const auto again = device().LoadKernel(fatbin, "a_kernel");
  ASSERT_TRUE(first && again);
  EXPECT_EQ(*first, *again);
  EXPECT_NE(device().LoadKernel(fatbin, "another").value(), *first);
  EXPECT_EQ(cudasim_calls("cuModuleLoadData") - before, 1);
}

TEST_F(DeviceTest, MemoryInfoFollowsHandles) {
  const MemoryInfo before = device().GetMemoryInfo().value();
  const PhysicalHandle handle = device().CreateHandle(kHandle).value();
  EXPECT_EQ(device().GetMemoryInfo().value().free, before.free - kHandle);
  ASSERT_TRUE(device().ReleaseHandle(handle));
  EXPECT_EQ(device().GetMemoryInfo().value().free, before.free);
}

}  // namespace
}  // namespace stratalloc
