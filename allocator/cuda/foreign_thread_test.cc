// SPDX-License-Identifier: Apache-2.0
// Four devices of which the program uses the last, and threads that never chose
// one: no call of Device's makes a context elsewhere, and each leaves its
// thread as it was. CUDA is loaded as a program loads it, because what is
// linked in is born with a context on every thread.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/cuda/device.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr int kDevices = 4, kUsed = 3;

// What the test itself asks of CUDA; none of it makes a context but SetDevice.
struct Cuda {
  decltype(&::cudaGetDevice) get_device;
  decltype(&::cudaSetDevice) set_device;
  decltype(&::cuCtxGetCurrent) current;
  decltype(&::cuDevicePrimaryCtxGetState) state;
  decltype(&::cudaThreadExchangeStreamCaptureMode) exchange;
  decltype(&::cudasim_fail) fail;
  decltype(&::cudasim_clear_faults) clear_faults;

  static const Cuda& Get() {
    static const Cuda cuda = [] {
      void* driver = dlopen("tests/simulator/cudasim/libcuda.so.1", RTLD_NOW);
      void* runtime =
          dlopen("tests/simulator/cudasim/libcudart.so.13", RTLD_NOW);
      EXPECT_TRUE(driver != nullptr && runtime != nullptr) << dlerror();
      const auto init =
          reinterpret_cast<decltype(&::cuInit)>(dlsym(driver, "cuInit"));
      EXPECT_EQ(init(0), CUDA_SUCCESS);
      return Cuda{
          reinterpret_cast<decltype(&::cudaGetDevice)>(
              dlsym(runtime, "cudaGetDevice")),
          reinterpret_cast<decltype(&::cudaSetDevice)>(
              dlsym(runtime, "cudaSetDevice")),
          reinterpret_cast<decltype(&::cuCtxGetCurrent)>(
              dlsym(driver, "cuCtxGetCurrent")),
          reinterpret_cast<decltype(&::cuDevicePrimaryCtxGetState)>(
              dlsym(driver, "cuDevicePrimaryCtxGetState")),
          reinterpret_cast<decltype(&::cudaThreadExchangeStreamCaptureMode)>(
              dlsym(runtime, "cudaThreadExchangeStreamCaptureMode")),
          reinterpret_cast<decltype(&::cudasim_fail)>(
              dlsym(driver, "cudasim_fail")),
          reinterpret_cast<decltype(&::cudasim_clear_faults)>(
              dlsym(driver, "cudasim_clear_faults")),
      };
    }();
    return cuda;
  }
};

std::string ActiveContexts() {
  std::string active;
  for (int device = 0; device < kDevices; ++device) {
    unsigned flags = 0;
    int one = -1;
    EXPECT_EQ(Cuda::Get().state(device, &flags, &one), CUDA_SUCCESS);
    if (one == 1) active += std::to_string(device);
  }
  return active;
}

// What a thread shows of where it is.
std::pair<int, CUcontext> Here() {
  int device = -1;
  CUcontext context = nullptr;
  EXPECT_EQ(Cuda::Get().get_device(&device), cudaSuccess);
  EXPECT_EQ(Cuda::Get().current(&context), CUDA_SUCCESS);
  return {device, context};
}

// Every call of Device's that asks CUDA for anything, one at a time.
std::vector<std::pair<std::string, std::function<void()>>> Calls(
    const Device& device) {
  struct Things {
    Address address = 0, plain = 0;
    PhysicalHandle handle = kNoHandle;
    StreamId stream = kDefaultStream;
    EventId event = kNoEvent;
    void* page = nullptr;
    void* kernel = nullptr;
    std::vector<char> bytes = std::vector<char>(4096);
  };
  auto* t = new Things;
  static const char fatbin[16] = {};
  return {
      {"Open", [] { EXPECT_TRUE(Device::Open(DeviceIndex{kUsed})); }},
      {"Look",
       [] {
         for (int i = 0; i < kDevices; ++i) {
           EXPECT_GT(Device::Look(DeviceIndex(i)).value().memory, 0u);
         }
       }},
      {"GetMemoryInfo", [=] { EXPECT_TRUE(device.GetMemoryInfo()); }},
      {"Malloc", [=] { t->plain = device.Malloc(kHandle).value(); }},
      {"FreeMalloc", [=] { EXPECT_TRUE(device.FreeMalloc(t->plain)); }},
      {"ReserveAddress",
       [=] { t->address = device.ReserveAddress(kHandle).value(); }},
      {"CreateHandle",
       [=] { t->handle = device.CreateHandle(kHandle).value(); }},
      {"Map", [=] { EXPECT_TRUE(device.Map(t->address, kHandle, t->handle)); }},
      {"GrantAccess",
       [=] { EXPECT_TRUE(device.GrantAccess(t->address, kHandle, {})); }},
      {"CreateStream", [=] { t->stream = device.CreateStream().value(); }},
      {"IsCapturing", [=] { EXPECT_FALSE(device.IsCapturing(t->stream)); }},
      {"CreateEvent", [=] { t->event = device.CreateEvent().value(); }},
      {"CopyToDevice",
       [=] {
         EXPECT_TRUE(
             device.CopyToDevice(t->address, t->bytes.data(), 4096, t->stream));
       }},
      {"CopyOnDevice",
       [=] {
         EXPECT_TRUE(device.CopyOnDevice(t->address + 4096, t->address, 4096,
                                         t->stream));
       }},
      {"CopyToHost",
       [=] {
         EXPECT_TRUE(
             device.CopyToHost(t->bytes.data(), t->address, 4096, t->stream));
       }},
      {"RecordEvent",
       [=] { EXPECT_TRUE(device.RecordEvent(t->event, t->stream)); }},
      {"StreamWaitEvent",
       [=] { EXPECT_TRUE(device.StreamWaitEvent(kDefaultStream, t->event)); }},
      {"IsEventDone", [=] { EXPECT_TRUE(device.IsEventDone(t->event)); }},
      {"SynchronizeEvent",
       [=] { EXPECT_TRUE(device.SynchronizeEvent(t->event)); }},
      {"IsIdle", [=] { device.IsIdle(t->stream); }},
      {"SynchronizeStream",
       [=] { EXPECT_TRUE(device.SynchronizeStream(t->stream)); }},
      {"SynchronizeDevice", [=] { EXPECT_TRUE(device.SynchronizeDevice()); }},
      {"RegisterHost",
       [=] {
         t->page = std::aligned_alloc(4096, 4096);
         EXPECT_TRUE(device.RegisterHost(t->page, 4096));
       }},
      {"UnregisterHost", [=] { EXPECT_TRUE(device.UnregisterHost(t->page)); }},
      {"LoadKernel",
       [=] { t->kernel = device.LoadKernel(fatbin, "a_kernel").value(); }},
      {"DestroyEvent", [=] { device.DestroyEvent(t->event); }},
      {"DestroyStream", [=] { device.DestroyStream(t->stream); }},
      {"Unmap", [=] { EXPECT_TRUE(device.Unmap(t->address, kHandle)); }},
      {"ReleaseHandle", [=] { EXPECT_TRUE(device.ReleaseHandle(t->handle)); }},
      {"FreeAddress",
       [=] { EXPECT_TRUE(device.FreeAddress(t->address, kHandle)); }},
      {"the end",
       [=] {
         std::free(t->page);
         delete t;
       }},
  };
}

void ExpectNothingElsewhere(const Device& device, const char* contexts) {
  const auto before = Here();
  for (const auto& [name, call] : Calls(device)) {
    call();
    EXPECT_EQ(ActiveContexts(), contexts) << name;
    EXPECT_EQ(Here(), before) << name;
    if (testing::Test::HasFailure()) return;
  }
}

// In this order: contexts are the process's and stay.
TEST(ForeignThreadTest, NoCallMakesAContextElsewhere) {
  ASSERT_EQ(ActiveContexts(), "");
  std::thread opening([] {
    EXPECT_TRUE(Device::Open(DeviceIndex{kUsed}));
    EXPECT_EQ(ActiveContexts(), "3");
    EXPECT_EQ(Here(), (std::pair<int, CUcontext>{0, nullptr}));
  });
  opening.join();
  const Device device = Device::Open(DeviceIndex{kUsed}).value();
  std::thread foreign([&] { ExpectNothingElsewhere(device, "3"); });
  foreign.join();
  // The other thread's ways are no habit: each thread is looked at anew.
  std::thread second([&] { ExpectNothingElsewhere(device, "3"); });
  second.join();
}

// What is asked nevertheless, another device would answer.
TEST(ForeignThreadTest, WhoCannotGoToItsDeviceAsksNoOther) {
  const Device device = Device::Open(DeviceIndex{kUsed}).value();
  const std::string contexts = ActiveContexts();
  std::thread foreign([&] {
    const EventId event = device.CreateEvent().value();
    ASSERT_EQ(Cuda::Get().fail("cuCtxPushCurrent", 1, CUDA_ERROR_UNKNOWN, 1),
              0);
    const std::vector<std::pair<std::string, Status>> asked = {
        {"SynchronizeDevice", device.SynchronizeDevice()},
        {"SynchronizeStream", device.SynchronizeStream(kDefaultStream)},
        {"RecordEvent", device.RecordEvent(event, kDefaultStream)},
        {"StreamWaitEvent", device.StreamWaitEvent(kDefaultStream, event)},
        {"CreateStream", device.CreateStream().map([](StreamId) {})},
        {"CreateEvent", device.CreateEvent().map([](EventId) {})},
        {"GetMemoryInfo", device.GetMemoryInfo().map([](MemoryInfo) {})},
        {"Malloc", device.Malloc(kHandle).map([](Address) {})},
    };
    EXPECT_FALSE(device.IsIdle(kDefaultStream));
    Cuda::Get().clear_faults();
    for (const auto& [name, answer] : asked) {
      ASSERT_FALSE(answer) << name;
      EXPECT_NE(answer.error().message.find("cuCtxPushCurrent failed"),
                std::string::npos)
          << name << ": " << answer.error().message;
    }
    EXPECT_EQ(ActiveContexts(), contexts);
    device.DestroyEvent(event);
  });
  foreign.join();
}

TEST(ForeignThreadTest, AThreadStaysWhereItHadGone) {
  const Device device = Device::Open(DeviceIndex{kUsed}).value();
  ASSERT_EQ(Cuda::Get().set_device(kUsed), cudaSuccess);
  ExpectNothingElsewhere(device, "3");
  ASSERT_EQ(Cuda::Get().set_device(1), cudaSuccess);
  ExpectNothingElsewhere(device, "13");
}

TEST(ForeignThreadTest, ADeviceThatIsNotThereIsRefused) {
  const auto none = Device::Open(DeviceIndex{kDevices});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("CUDA_ERROR_INVALID_DEVICE"),
            std::string::npos)
      << none.error().message;
  EXPECT_FALSE(Device::Look(DeviceIndex{kDevices}));
}

TEST(ForeignThreadTest, WhatWasMadeIsAskedFromAnywhere) {
  const Device device = Device::Open(DeviceIndex{kUsed}).value();
  const StreamId stream = device.CreateStream().value();
  const EventId event = device.CreateEvent().value();
  ASSERT_EQ(Cuda::Get().set_device(1), cudaSuccess);
  ASSERT_EQ(Cuda::Get().fail("cuCtxPushCurrent", 1, CUDA_ERROR_UNKNOWN, 1), 0);
  EXPECT_TRUE(device.RecordEvent(event, stream));
  EXPECT_TRUE(device.StreamWaitEvent(stream, event));
  EXPECT_TRUE(device.SynchronizeStream(stream));
  EXPECT_TRUE(device.SynchronizeEvent(event));
  EXPECT_TRUE(device.IsEventDone(event));
  EXPECT_TRUE(device.IsIdle(stream));
  Cuda::Get().clear_faults();
  device.DestroyEvent(event);
  device.DestroyStream(stream);
}

// What could not be changed is not changed back. (To ask for it makes a context
// here.)
TEST(ForeignThreadTest, AThreadKeepsItsCaptureMode) {
  const Device device = Device::Open(DeviceIndex{kUsed}).value();
  ASSERT_EQ(Cuda::Get().fail("cudaThreadExchangeStreamCaptureMode", 1,
                             cudaErrorUnknown, 0),
            0);
  EXPECT_TRUE(device.GetMemoryInfo());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  ASSERT_EQ(Cuda::Get().exchange(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

}  // namespace
}  // namespace stratalloc
