// SPDX-License-Identifier: Apache-2.0
// Sharing a block and mapping it again, in one process, which its own socket
// answers and pidfd_getfd too. Two processes: descriptor_server_test.cc and
// tests/simulator/cudasim/operator_bridge/test_sharing_*.py.
#include "allocator/ipc.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/descriptor_server.h"
#include "allocator/device_allocator.h"
#include "allocator/moving_test.h"
#include "allocator/state/settings.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;
using testing::Not;

// But for sockets: a DescriptorServer closes that of its last peer after the
// peer has.
int OpenDescriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* each = readdir(folder)) {
    char target[64];
    const ssize_t bytes =
        readlinkat(dirfd(folder), each->d_name, target, sizeof target);
    count +=
        bytes > 0 && !std::string_view(target, static_cast<std::size_t>(bytes))
                          .starts_with("socket:");
  }
  closedir(folder);
  return count;
}

class IpcTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, 64 * kMiB);
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    allocator_ =
        std::move(DeviceAllocator::Create(*device_, {.tiering = true}).value());
  }
  void TearDown() override {
    ASSERT_NE(allocator_, nullptr) << "SetUp failed";
    cudasim_clear_faults();
    const Status status = allocator_->CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    allocator_.reset();
    EXPECT_EQ(cudasim_violation_count(), 0);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }
  Address Malloc(Bytes bytes,
                 LifetimeClass lifetime = LifetimeClass::kPersistent) {
    return allocator_->Malloc({bytes, kDefaultStream, lifetime})
        .value()
        .address;
  }
  Result<ImportedMemory> Open(std::string_view handle) {
    return ImportedMemory::Open(*device_, {}, handle);
  }
  void CopyAndCompare(Address from, Address to) {
    char wrote[64], read[64] = {};
    for (int i = 0; i < 64; ++i) wrote[i] = static_cast<char>(i * 7 + 1);
    ASSERT_TRUE(device_->CopyToDevice(from, wrote, 64, kDefaultStream));
    ASSERT_TRUE(device_->CopyToHost(read, to, 64, kDefaultStream));
    ASSERT_TRUE(device_->SynchronizeDevice());
    EXPECT_EQ(std::memcmp(wrote, read, 64), 0);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceAllocator> allocator_;
};

TEST_F(IpcTest, TheFormatIsNatives) {
  Malloc(512);  // so that the next one has an offset
  const Address address = Malloc(512);
  const SharedBlock shared = allocator_->Share(address).value();
  // Version, type, header with a process number, what names its socket, one
  // small handle.
  ASSERT_EQ(shared.handle.size(), 2 + 24 + 4u);
  EXPECT_EQ(shared.handle.substr(0, 2), std::string("\2e"));
  std::int32_t pid[2];
  std::uint64_t sizes[2];
  std::memcpy(pid, shared.handle.data() + 2, sizeof pid);
  std::memcpy(sizes, shared.handle.data() + 10, sizeof sizes);
  EXPECT_EQ(pid[0], getpid());
  EXPECT_NE(pid[1], 0);
  EXPECT_EQ(static_cast<std::uint32_t>(pid[1]), DescriptorServer::Nonce());
  EXPECT_EQ(sizes[0], 2 * kMiB);
  EXPECT_EQ(sizes[1], 1u);
  EXPECT_EQ(shared.offset, 512u);
  for (const SegmentView& segment : allocator_->Snapshot()) {
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kAllocated) {
        EXPECT_TRUE(allocator_->Free(block.address));
      }
    }
  }
}

TEST_F(IpcTest, NewerVersionStatesTheKindOfItsHandles) {
  const Address address = Malloc(3 * kMiB, LifetimeClass::kTransient);
  const std::string older = allocator_->Share(address)->handle;
  Settings::Get().UseShareVersion(3);
  const SharedBlock shared = allocator_->Share(address).value();
  Settings::Get().UseShareVersion(2);
  // The header is the same; behind it are the kind, 1, and zeros.
  EXPECT_EQ(shared.handle, "\3e" + older.substr(2, 24) +
                               std::string("\1\0\0\0\0\0\0\0", 8) +
                               older.substr(2 + 24));
  ImportedMemory memory = Open(shared.handle).value();
  CopyAndCompare(address, memory.address() + shared.offset);
  ASSERT_TRUE(memory.Close());
  std::string unknown = shared.handle;
  unknown[2 + 24] = 20;
  EXPECT_THAT(Open(unknown).error().message, HasSubstr("illformed"));
  std::string fabric = shared.handle;
  fabric[2 + 24] = 2;  // of which each has 64 bytes
  EXPECT_THAT(Open(fabric).error().message, HasSubstr("illformed"));
  for (std::size_t bytes = 0; bytes < shared.handle.size(); ++bytes) {
    EXPECT_FALSE(Open(shared.handle.substr(0, bytes))) << bytes;
  }
  EXPECT_TRUE(allocator_->Free(address));
}

// A native sender's padding, which may be anything.
TEST_F(IpcTest, TheBytesBehindThePidMayBeAnything) {
  const Address address = Malloc(1000);
  const SharedBlock shared = allocator_->Share(address).value();
  for (const char byte : {'\0', '\1', '\x7f'}) {
    std::string handle = shared.handle;
    std::memset(handle.data() + 2 + 4, byte, 4);
    ImportedMemory memory = Open(handle).value();
    CopyAndCompare(address, memory.address() + shared.offset);
    ASSERT_TRUE(memory.Close());
  }
  EXPECT_TRUE(allocator_->Free(address));
}

// pytorch issue 198305: receivers cache by the bytes.
TEST_F(IpcTest, EqualMemoryHasEqualBytes) {
  const Address one = Malloc(1000);
  const Address two = Malloc(1000);
  const std::string first = allocator_->Share(one)->handle;
  EXPECT_EQ(allocator_->Share(one)->handle, first);
  EXPECT_EQ(allocator_->Share(two)->handle, first);
  EXPECT_TRUE(allocator_->Free(one));
  const Address again = Malloc(1000);
  EXPECT_EQ(allocator_->Share(again)->handle, first);
  EXPECT_TRUE(allocator_->Free(again));
  EXPECT_TRUE(allocator_->Free(two));
}

TEST_F(IpcTest, ABlockOverSeveralHandlesArrivesWhole) {
  ASSERT_NE(DescriptorServer::Nonce(), 0u);  // one of its own is open now
  const int descriptors = OpenDescriptors();
  const Address address = Malloc(7 * kMiB, LifetimeClass::kTransient);
  const SharedBlock shared = allocator_->Share(address).value();
  EXPECT_EQ(shared.handle.size(), 2 + 24 + 4 * 4u);
  const long mappings = cudasim_live_mappings();
  Result<ImportedMemory> opened = Open(shared.handle);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  ImportedMemory memory = *opened;
  EXPECT_EQ(cudasim_live_mappings(), mappings + 4);
  CopyAndCompare(address, memory.address() + shared.offset);
  CopyAndCompare(address + 7 * kMiB - 64,
                 memory.address() + shared.offset + 7 * kMiB - 64);
  ASSERT_TRUE(memory.Close());
  EXPECT_EQ(cudasim_live_mappings(), mappings);
  EXPECT_TRUE(allocator_->Free(address));
  ASSERT_TRUE(allocator_->EmptyCache());
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST_F(IpcTest, ClosingWaitsForKernelsThatStillRead) {
  cudasim_set_mode(1);
  const Address address = Malloc(1000);
  ImportedMemory memory = Open(allocator_->Share(address)->handle).value();
  const cudasim_access access{memory.address(), 512, 0};
  cudasim_note_access(nullptr, "kernel", &access, 1);
  ASSERT_TRUE(memory.Close());  // TearDown looks for violations
  EXPECT_TRUE(allocator_->Free(address));
}

// Blocks of a MemPool's own allocator are named by the driver's handle.
TEST_F(IpcTest, AnotherAllocatorsBlockIsItsSegmentAndAnOffset) {
  const PoolId pool{0, 1};
  allocator_->CreateOrUsePool(
      pool, std::make_shared<const MemorySource>(
                MemorySource{[](Bytes bytes, StreamId) -> Result<Address> {
                               void* memory = nullptr;
                               cudaMalloc(&memory, bytes);
                               return reinterpret_cast<Address>(memory);
                             },
                             [](Address address) {
                               cudaFree(reinterpret_cast<void*>(address));
                             }}));
  ASSERT_TRUE(
      allocator_->BeginAllocateToPool(pool, [](StreamId) { return true; }));
  const Address first = Malloc(512), second = Malloc(512);
  ASSERT_TRUE(allocator_->EndAllocateToPool(pool));
  const SharedBlock shared = allocator_->Share(second).value();
  EXPECT_EQ(shared.offset, second - first);
  EXPECT_EQ(shared.handle.substr(0, 2), std::string("\2c"));
  EXPECT_EQ(shared.handle.size(), 2 + Device::kMallocHandleBytes);
  EXPECT_TRUE(allocator_->Free(first));
  EXPECT_TRUE(allocator_->Free(second));
  ASSERT_TRUE(allocator_->ReleasePool(pool));
  ASSERT_TRUE(allocator_->ReleasePool(pool));
  ASSERT_TRUE(allocator_->EmptyCache());
}

TEST_F(IpcTest, WhatIsSharedStaysUntilItIsFreed) {
  const Address address = Malloc(3 * kMiB);
  const auto may_leave = [&] { return MayLeave(*allocator_, address); };
  EXPECT_TRUE(may_leave());
  ASSERT_TRUE(allocator_->Share(address));
  ASSERT_TRUE(allocator_->Share(address));  // twice is once
  EXPECT_FALSE(may_leave());
  EXPECT_TRUE(allocator_->Free(address));
  EXPECT_EQ(HandleAt(*allocator_, address).entry().pins.load(), 0u);
  const Address next = Malloc(3 * kMiB);
  ASSERT_EQ(next, address);
  EXPECT_TRUE(may_leave());
  EXPECT_TRUE(allocator_->Free(next));
}

TEST_F(IpcTest, OnlyBlocksAreShared) {
  const Address address = Malloc(1000);
  const auto inside = allocator_->Share(address + 512);
  ASSERT_FALSE(inside);
  EXPECT_EQ(inside.error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(allocator_->Free(address));
  EXPECT_FALSE(allocator_->Share(address));
}

TEST_F(IpcTest, IllFormedHandlesAreRefused) {
  const Address address = Malloc(5 * kMiB);
  const std::string good = allocator_->Share(address)->handle;
  const long mappings = cudasim_live_mappings();
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(Open(good.substr(0, bytes))) << bytes;
  }
  std::string future = good;
  future[0] = 4;
  EXPECT_THAT(Open(future).error().message, HasSubstr("future version"));
  std::string type = good;
  type[1] = 'x';
  EXPECT_THAT(Open(type).error().message, HasSubstr("illformed"));
  std::string many = good;
  many[2 + 16 + 7] = 0x40;  // 2^62 handles: their sizes must not wrap around
  EXPECT_THAT(Open(many).error().message, HasSubstr("illformed"));
  std::string large = good;
  large[2 + 8 + 4] = 0x40;  // each is 2^38 bytes: fewer than the most
  ASSERT_EQ(large.size(), good.size());
  std::string larger = good;
  larger[2 + 8 + 4] = static_cast<char>(0x80);  // 2^39: three are too many
  EXPECT_THAT(Open(large).error().message, Not(HasSubstr("illformed")));
  EXPECT_THAT(Open(larger).error().message, HasSubstr("illformed"));
  std::string closed = good;
  closed[2 + 24 + 1] = 0x70;  // a descriptor that is not open
  EXPECT_THAT(Open(closed).error().message,
              HasSubstr("does not share descriptor"));
  const auto from_native = [](std::string text) {
    std::memset(text.data() + 2 + 4, 0, 4);
    return text;
  };
  EXPECT_THAT(Open(from_native(closed)).error().message,
              HasSubstr("pidfd_getfd: Bad file descriptor"));
  EXPECT_EQ(cudasim_live_mappings(), mappings);
  EXPECT_TRUE(allocator_->Free(address));
}

TEST_F(IpcTest, AFailedMappingLeavesNothing) {
  const Address address = Malloc(5 * kMiB);
  const std::string handle = allocator_->Share(address)->handle;
  for (const char* call :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap"}) {
    const long mappings = cudasim_live_mappings();
    ASSERT_EQ(cudasim_fail(call, 1, CUDA_ERROR_INVALID_VALUE, 0), 0);
    const auto failed = Open(handle);
    ASSERT_FALSE(failed) << call;
    EXPECT_THAT(failed.error().message, HasSubstr(call));
    EXPECT_EQ(cudasim_live_mappings(), mappings);
  }
  EXPECT_TRUE(allocator_->Free(address));
}

// Where handles cannot be exported everything else works.
TEST_F(IpcTest, ADriverWithoutExportIsUsedWithout) {
  allocator_.reset();
  ASSERT_EQ(cudasim_fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, 0), 0);
  allocator_ =
      std::move(DeviceAllocator::Create(*device_, {.tiering = true}).value());
  const Address address = Malloc(1000);
  const auto refused = allocator_->Share(address);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("memory of GPU 0 cannot be given to another process"));
  EXPECT_THAT(refused.error().message, HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
  EXPECT_TRUE(allocator_->Free(address));
}

// A soft limit on open files that allows `most` descriptors.
class FewFiles {
 public:
  explicit FewFiles(std::size_t most) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit few = before_;
    few.rlim_cur = 4 * most;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewFiles() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_{};
};

TEST_F(IpcTest, DescriptorsStayBelowAQuarterOfTheLimitOnFiles) {
  constexpr std::size_t kMost = 16;
  const FewFiles few(kMost);
  std::vector<Address> blocks;
  for (std::size_t i = 0; i <= kMost; ++i) blocks.push_back(Malloc(2 * kMiB));
  const int files = OpenDescriptors();
  for (std::size_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(allocator_->Share(blocks[i]).has_value()) << i;
  }
  const auto refuses = [&] {
    allocator_->CloseDescriptors();
    const Result<SharedBlock> refused = allocator_->Share(blocks[kMost]);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message,
                HasSubstr("1 file descriptors, 16 are open"));
    EXPECT_THAT(refused.error().message, HasSubstr("ulimit -n"));
  };
  refuses();
  EXPECT_TRUE(allocator_->Share(blocks[0]).has_value()) << "needs no more";
  refuses();
  // What is freed is nobody's any more.
  EXPECT_TRUE(allocator_->Free(blocks[0]).has_value());
  allocator_->CloseDescriptors();
  EXPECT_TRUE(allocator_->Share(blocks[kMost]).has_value());
  EXPECT_LE(OpenDescriptors() - files, static_cast<int>(kMost));
  for (std::size_t i = 1; i <= kMost; ++i) {
    EXPECT_TRUE(allocator_->Free(blocks[i]).has_value());
  }
}

// A descriptor that is closed is given another memory's number, and the text
// that travels is that of the first: who reads it would have the wrong bytes.
class IpcKeptTest : public IpcTest,
                    public testing::WithParamInterface<const char*> {
 protected:
  static constexpr PoolId kPool{0, 7};
  void SetUp() override {
    IpcTest::SetUp();
    if (Is("without tiering")) {
      allocator_.reset();
      allocator_ = std::move(DeviceAllocator::Create(*device_, {}).value());
    } else if (Is("private")) {
      ASSERT_TRUE(
          allocator_->BeginAllocateToPool(kPool, [](StreamId) { return true; })
              .has_value());
    }
  }
  void TearDown() override {
    if (Is("private")) {
      EXPECT_TRUE(allocator_->EndAllocateToPool(kPool).has_value());
      EXPECT_TRUE(allocator_->ReleasePool(kPool).has_value());
    }
    IpcTest::TearDown();
  }
  static bool Is(const char* kind) {
    return std::string_view(GetParam()) == kind;
  }
};

TEST_P(IpcKeptTest, DescriptorsOfLiveBlocksStayOpen) {
  const FewFiles few(16);
  const LifetimeClass lifetime =
      Is("transient") ? LifetimeClass::kTransient : LifetimeClass::kPersistent;
  const Address one = Malloc(20 * kMiB, lifetime);
  const Address two = Malloc(20 * kMiB, lifetime);
  const Result<SharedBlock> shared = allocator_->Share(one);
  ASSERT_TRUE(shared.has_value()) << shared.error().message;
  for (int i = 0; i < 2; ++i) {
    allocator_->CloseDescriptors();
    EXPECT_FALSE(allocator_->Share(two).has_value());
  }
  EXPECT_EQ(allocator_->Share(one)->handle, shared->handle);
  // Another block of the same memory frees it for nobody.
  const Address beside = Malloc(1000, lifetime);
  EXPECT_TRUE(allocator_->Share(beside).has_value());
  EXPECT_TRUE(allocator_->Free(beside).has_value());
  allocator_->CloseDescriptors();
  EXPECT_EQ(allocator_->Share(one)->handle, shared->handle);
  // What lies there next is nobody else's.
  EXPECT_TRUE(allocator_->Free(one).has_value());
  const Address next = Malloc(20 * kMiB, lifetime);
  EXPECT_EQ(next, one);
  allocator_->CloseDescriptors();
  EXPECT_TRUE(allocator_->Share(two).has_value());
  EXPECT_TRUE(allocator_->Free(two).has_value());
  EXPECT_TRUE(allocator_->Free(next).has_value());
}

INSTANTIATE_TEST_SUITE_P(Kinds, IpcKeptTest,
                         testing::Values("persistent", "transient",
                                         "without tiering", "private"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace stratalloc
