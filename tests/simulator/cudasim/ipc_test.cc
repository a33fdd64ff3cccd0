// SPDX-License-Identifier: Apache-2.0
//
// Memory and events between two real processes: what is shared, what is
// refused, how long bytes live, and that nothing is left.

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/simulator/cudasim/other_process.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

constexpr char kProgram[] = "tests/simulator/cudasim/other_process";
constexpr unsigned kInterprocess =
    cudaEventInterprocess | cudaEventDisableTiming;

long OpenDescriptors() {
  long count = 0;
  DIR* const all = opendir("/proc/self/fd");
  while (const dirent* each = readdir(all)) count += each->d_name[0] != '.';
  closedir(all);
  return count;
}

class IpcTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    descriptors_ = OpenDescriptors() - 1;  // before the socket
  }
  void TearDown() override {
    const Reply leaks = other_.Do(Ask::kLeaks);
    if (other_.pid() > 0) {
      EXPECT_STREQ(leaks.text, "no leaks\n");
    }
    EXPECT_EQ(OpenDescriptors() - 1, descriptors_);
    SimulatorTest::TearDown();
  }

  static uint64_t Number(const void* pointer) {
    return reinterpret_cast<uint64_t>(pointer);
  }
  static char Byte(const void* device) {
    char byte = 0;
    EXPECT_EQ(cudaMemcpy(&byte, device, 1, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return byte;
  }

  OtherProcess other_{kProgram};
  long descriptors_ = 0;
};

TEST_F(IpcTest, BothSidesSeeTheSameBytes) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 3 * kHandle), cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 7, 3 * kHandle), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);

  const Reply opened = other_.DoWith(&handle, Ask::kOpenMemory, 1);
  ASSERT_EQ(opened.status, cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kRead, opened.value).value, 7u);
  EXPECT_EQ(other_.Do(Ask::kRead, opened.value + 3 * kHandle - 1).value, 7u);
  // Counted once, by the owner.
  EXPECT_EQ(other_.Do(Ask::kUsed).value, 0u);
  EXPECT_EQ(cudasim_used(0), 3 * kHandle);
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, opened.value).status, cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kRead, opened.value).status,
            cudaErrorIllegalAddress);
}

TEST_F(IpcTest, WritesOfTheImporterReachTheOwner) {
  const Reply memory = other_.Do(Ask::kMalloc, kHandle);
  ASSERT_EQ(memory.status, cudaSuccess);
  const Reply handle = other_.Do(Ask::kGetMemory, memory.value);
  void* here = nullptr;
  cudaIpcMemHandle_t opened;
  std::memcpy(&opened, handle.handle, sizeof(opened));
  ASSERT_EQ(cudaIpcOpenMemHandle(&here, opened, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  ASSERT_EQ(cudaMemset(here, 9, kHandle), cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kRead, memory.value).value, 9u);
  other_.Do(Ask::kWrite, memory.value + 5, 4);
  EXPECT_EQ(Byte(static_cast<char*>(here) + 5), 4);
  EXPECT_EQ(cudasim_used(0), 0u);

  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, here), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  // It is the other's: neither freed, nor exported again, nor unmapped here.
  EXPECT_EQ(cudaFree(here), cudaErrorInvalidValue);
  EXPECT_EQ(cuMemUnmap(Number(here), kHandle), CUDA_ERROR_INVALID_VALUE);
  cudaIpcMemHandle_t again;
  EXPECT_EQ(cudaIpcGetMemHandle(&again, here), cudaErrorInvalidValue);

  EXPECT_EQ(cudaIpcCloseMemHandle(here), cudaSuccess);
  EXPECT_EQ(cudaIpcCloseMemHandle(here), cudaErrorInvalidValue);
  EXPECT_EQ(other_.Do(Ask::kFree, memory.value).status, cudaSuccess);
  EXPECT_STREQ(other_.Do(Ask::kViolations).text, "");
}

TEST_F(IpcTest, ASecondOpenIsTheSameAddressAndNeedsASecondClose) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  cudaIpcMemHandle_t handle;
  // From the middle: the handle means the whole allocation.
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, static_cast<char*>(memory) + 100),
            cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 3, 1), cudaSuccess);
  const Reply one = other_.DoWith(&handle, Ask::kOpenMemory, 1);
  const Reply two = other_.DoWith(&handle, Ask::kOpenMemory, 1);
  ASSERT_EQ(two.status, cudaSuccess);
  EXPECT_EQ(one.value, two.value);
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, one.value).status, cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kRead, one.value).value, 3u);
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, one.value).status, cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, one.value).status,
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(IpcTest, HandlesThatCannotBeOpenedSayWhy) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  // In the process that made it.
  void* here = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&here, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorDeviceUninitialized);
  CUipcMemHandle driver;
  ASSERT_EQ(cuIpcGetMemHandle(&driver, Number(memory)), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(
      cuIpcOpenMemHandle(&address, driver, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      CUDA_ERROR_INVALID_CONTEXT);
  // Other flags than the one there is.
  EXPECT_EQ(other_.DoWith(&handle, Ask::kOpenMemory, 0).status,
            cudaErrorInvalidValue);
  // Forged: any byte.
  for (size_t i = 0; i < 56; i += 5) {
    cudaIpcMemHandle_t forged = handle;
    forged.reserved[i] ^= 1;
    EXPECT_EQ(other_.DoWith(&forged, Ask::kOpenMemory, 1).status,
              cudaErrorInvalidValue)
        << "byte " << i;
  }
  // An event's handle is not a memory handle.
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kInterprocess), cudaSuccess);
  cudaIpcEventHandle_t of_event;
  ASSERT_EQ(cudaIpcGetEventHandle(&of_event, event), cudaSuccess);
  EXPECT_EQ(other_.DoWith(&of_event, Ask::kOpenMemory, 1).status,
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  // Stale: freed, and its place in the table taken by another one.
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(other_.DoWith(&handle, Ask::kOpenMemory, 1).status,
            cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  cudaIpcMemHandle_t next;
  ASSERT_EQ(cudaIpcGetMemHandle(&next, memory), cudaSuccess);
  EXPECT_EQ(other_.DoWith(&handle, Ask::kOpenMemory, 1).status,
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  // Nothing to make a handle of.
  int on_the_host = 0;
  EXPECT_EQ(cudaIpcGetMemHandle(&next, &on_the_host), cudaErrorInvalidValue);
  Block mapped;
  EXPECT_EQ(cudaIpcGetMemHandle(&next, mapped.pointer()),
            cudaErrorInvalidValue);
}

TEST_F(IpcTest, AHandleEndsWithItsProcess) {
  const Reply memory = other_.Do(Ask::kMalloc, kHandle);
  other_.Do(Ask::kWrite, memory.value, 6);
  const Reply reply = other_.Do(Ask::kGetMemory, memory.value);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, reply.handle, sizeof(handle));
  void* here = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&here, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  other_.Kill();
  // What is open stays until it is closed.
  EXPECT_EQ(Byte(here), 6);
  EXPECT_EQ(cudaIpcCloseMemHandle(here), cudaSuccess);
  EXPECT_EQ(cudaIpcOpenMemHandle(&here, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorInvalidResourceHandle);
}

TEST_F(IpcTest, FreeingWhatAnotherProcessHasOpenIsAViolationOnBothSides) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 8, kHandle), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  const Reply opened = other_.DoWith(&handle, Ask::kOpenMemory, 1);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_NE(Violation(0).find("which process " + std::to_string(other_.pid()) +
                              " has open"),
            std::string::npos)
      << Violation(0);
  // The bytes are not free while they are mapped there.
  EXPECT_EQ(cudasim_used(0), kHandle);
  EXPECT_EQ(other_.Do(Ask::kRead, opened.value).status,
            cudaErrorIllegalAddress);
  const std::string text = other_.Do(Ask::kViolations).text;
  EXPECT_NE(text.find("process " + std::to_string(getpid()) + ", whose memory"),
            std::string::npos)
      << text;
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, opened.value).status, cudaSuccess);
  EXPECT_EQ(cudasim_used(0), 0u);
  cudasim_clear_violations();
}

TEST_F(IpcTest, AnImporterThatCrashesLetsGo) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  ASSERT_EQ(other_.DoWith(&handle, Ask::kOpenMemory, 1).status, cudaSuccess);
  other_.Kill();
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(IpcTest, PendingWorkOnClosedMemoryIsAViolation) {
  const Reply memory = other_.Do(Ask::kMalloc, kHandle);
  const Reply reply = other_.Do(Ask::kGetMemory, memory.value);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, reply.handle, sizeof(handle));
  cudasim_set_mode(1);
  void* here = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&here, handle, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(here, 1, 10, nullptr), cudaSuccess);
  ASSERT_EQ(cudaIpcCloseMemHandle(here), cudaSuccess);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_EQ(Violation(0).find("cudaIpcCloseMemHandle"), 21u) << Violation(0);
  cudasim_clear_errors();
  cudaDeviceSynchronize();
  EXPECT_EQ(other_.Do(Ask::kFree, memory.value).status, cudaSuccess);
}

TEST_F(IpcTest, ARecordedEventIsDoneForTheOtherProcess) {
  for (const uint64_t recorded : {0, 1}) {
    other_.Do(Ask::kSetMode, 1);
    const Reply memory = other_.Do(Ask::kMalloc, kHandle);
    const Reply event = other_.Do(Ask::kNewEvent, kInterprocess);
    ASSERT_EQ(event.status, cudaSuccess);
    cudaIpcMemHandle_t memory_handle;
    cudaIpcEventHandle_t event_handle;
    Reply reply = other_.Do(Ask::kGetMemory, memory.value);
    std::memcpy(&memory_handle, reply.handle, sizeof(memory_handle));
    reply = other_.Do(Ask::kGetEvent, event.value);
    ASSERT_EQ(reply.status, cudaSuccess);
    std::memcpy(&event_handle, reply.handle, sizeof(event_handle));
    void* here = nullptr;
    cudaEvent_t there = nullptr;
    ASSERT_EQ(cudaIpcOpenMemHandle(&here, memory_handle,
                                   cudaIpcMemLazyEnablePeerAccess),
              cudaSuccess);
    ASSERT_EQ(cudaIpcOpenEventHandle(&there, event_handle), cudaSuccess);
    // Never recorded counts as complete.
    EXPECT_EQ(cudaEventQuery(there), cudaSuccess);
    // Several: a step may run one of them by chance, not all.
    for (uint64_t value = 1; value <= 12; ++value) {
      other_.Do(Ask::kFill, memory.value, value);
    }
    if (recorded == 1) {
      EXPECT_EQ(other_.Do(Ask::kRecord, event.value).status, cudaSuccess);
    }
    EXPECT_EQ(cudaStreamWaitEvent(nullptr, there, 0), cudaSuccess);
    // Without the record the other process's stream has not moved, or by no
    // more than the steps that happened to run.
    if (recorded == 1) {
      EXPECT_EQ(Byte(here), 12);
    }
    float milliseconds = 0;
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, there, there),
              cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventDestroy(there), cudaSuccess);
    EXPECT_EQ(cudaIpcCloseMemHandle(here), cudaSuccess);
    EXPECT_EQ(other_.Do(Ask::kFree, memory.value).status, cudaSuccess);
    EXPECT_EQ(other_.Do(Ask::kDestroyEvent, event.value).status, cudaSuccess);
  }
  EXPECT_STREQ(other_.Do(Ask::kViolations).text, "");
}

TEST_F(IpcTest, WaitingForAnotherProcessProvesWhatItWaitedFor) {
  cudasim_set_mode(1);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  cudaEvent_t mine = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&mine, kInterprocess), cudaSuccess);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, kHandle), cudaSuccess);
  ASSERT_EQ(
      cudaMemcpyAsync(memory, pinned, kHandle, cudaMemcpyHostToDevice, stream),
      cudaSuccess);
  ASSERT_EQ(cudaEventRecord(mine, stream), cudaSuccess);
  cudaIpcEventHandle_t handle;
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, mine), cudaSuccess);
  const Reply theirs = other_.DoWith(&handle, Ask::kOpenEvent);
  ASSERT_EQ(theirs.status, cudaSuccess);
  EXPECT_EQ(other_.Do(Ask::kSynchronize, theirs.value).status, cudaSuccess);
  // The answer comes back as an event of the other process.
  const Reply back = other_.Do(Ask::kNewEvent, kInterprocess);
  other_.Do(Ask::kRecord, back.value);
  Reply reply = other_.Do(Ask::kGetEvent, back.value);
  cudaIpcEventHandle_t back_handle;
  std::memcpy(&back_handle, reply.handle, sizeof(back_handle));
  cudaEvent_t answer = nullptr;
  ASSERT_EQ(cudaIpcOpenEventHandle(&answer, back_handle), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(answer), cudaSuccess);
  // Proved complete: the copy's host memory may go.
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);

  other_.Do(Ask::kDestroyEvent, theirs.value);
  other_.Do(Ask::kDestroyEvent, back.value);
  // Of an event its owner has destroyed nothing is promised.
  cudaEventSynchronize(answer);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_NE(Violation(0).find("which has destroyed it"), std::string::npos);
  EXPECT_EQ(cudaEventDestroy(answer), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(mine), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(IpcTest, EventsThatCannotBeShared) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventInterprocess),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle;
  EXPECT_EQ(cudaIpcGetEventHandle(&handle, event),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, kInterprocess), cudaSuccess);
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, event), cudaSuccess);
  cudaEvent_t here = nullptr;
  EXPECT_EQ(cudaIpcOpenEventHandle(&here, handle),
            cudaErrorDeviceUninitialized);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(other_.DoWith(&handle, Ask::kOpenEvent).status,
            cudaErrorInvalidResourceHandle);
}

TEST_F(IpcTest, DescriptorsCarryHandlesToOtherProcesses) {
  CUmemAllocationProp prop = DeviceProp();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  int descriptor = -1;
  ASSERT_EQ(
      cuMemExportToShareableHandle(&descriptor, handle,
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  EXPECT_NE(fcntl(descriptor, F_GETFD) & FD_CLOEXEC, 0);
  const Reply imported = other_.DoWithDescriptor(descriptor, Ask::kImport);
  ASSERT_EQ(imported.status, CUDA_SUCCESS);
  const Reply mapped = other_.Do(Ask::kMap, imported.value);
  ASSERT_EQ(mapped.status, CUDA_SUCCESS);
  EXPECT_EQ(other_.Do(Ask::kRelease, imported.value).status, CUDA_SUCCESS);
  EXPECT_EQ(other_.Do(Ask::kWrite, mapped.value + 9, 33).status, cudaSuccess);

  // The owner's references may all go: the importer's mapping holds it.
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  ASSERT_EQ(Grant(address, kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            CUDA_SUCCESS);
  EXPECT_EQ(Byte(reinterpret_cast<void*>(address + 9)), 33);
  ASSERT_EQ(cuMemUnmap(address, kHandle), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  close(descriptor);
  EXPECT_EQ(cudasim_used(0), kHandle);
  EXPECT_EQ(other_.Do(Ask::kRead, mapped.value + 9).value, 33u);
  EXPECT_EQ(other_.Do(Ask::kUnmap, mapped.value).status, CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), 0u);
  ASSERT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_violation_count(), 0);
  EXPECT_STREQ(other_.Do(Ask::kViolations).text, "");
}

TEST_F(IpcTest, ADescriptorAloneHoldsTheMemory) {
  CUmemAllocationProp prop = DeviceProp();
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  int descriptor = -1;
  ASSERT_EQ(
      cuMemExportToShareableHandle(&descriptor, handle,
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), kHandle);
  // And gives it back, here or elsewhere, with its properties.
  CUmemGenericAllocationHandle back = 0;
  ASSERT_EQ(cuMemImportFromShareableHandle(
                &back, reinterpret_cast<void*>(uint64_t(descriptor)),
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  CUmemAllocationProp seen = {};
  ASSERT_EQ(cuMemGetAllocationPropertiesFromHandle(&seen, back), CUDA_SUCCESS);
  EXPECT_EQ(seen.requestedHandleTypes, prop.requestedHandleTypes);
  EXPECT_EQ(seen.location.id, 0);
  ASSERT_EQ(cuMemRelease(back), CUDA_SUCCESS);
  EXPECT_EQ(cudasim_used(0), kHandle);
  close(descriptor);
  EXPECT_EQ(cudasim_used(0), 0u);
}

TEST_F(IpcTest, DescriptorsAndHandlesThatAreNone) {
  CUmemAllocationProp prop = DeviceProp();
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  int descriptor = -1;
  constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  // Not asked for at creation, no such handle, no such type.
  EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handle, kDescriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handle, kDescriptor, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (const uint64_t wrong : {uint64_t(file), uint64_t{987654}}) {
    EXPECT_EQ(cuMemImportFromShareableHandle(
                  &handle, reinterpret_cast<void*>(wrong), kDescriptor),
              CUDA_ERROR_INVALID_VALUE);
  }
  close(file);
}

TEST_F(IpcTest, MemoryOfTheOtherDeviceEnablesPeerAccess) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cudaIpcMemHandle_t handle;
  ASSERT_EQ(cudaIpcGetMemHandle(&handle, memory), cudaSuccess);
  const Reply opened = other_.DoWith(&handle, Ask::kOpenMemory, 1);
  ASSERT_EQ(opened.status, cudaSuccess);
  // A fill on device 0 there.
  EXPECT_EQ(other_.Do(Ask::kFill, opened.value, 2).status, cudaSuccess);
  EXPECT_EQ(Byte(memory), 2);
  EXPECT_EQ(other_.Do(Ask::kCloseMemory, opened.value).status, cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace cudasim
