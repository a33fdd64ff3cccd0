// SPDX-License-Identifier: Apache-2.0
// Whatever call of the driver fails, once or for good: nobody aborts, no byte
// is lost, and what cannot leave stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/twins/checksum_twin.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600;

class EngineDriverErrorsTest : public EngineTest {
 protected:
  void OpenSmall() {
    Rig::Options options;
    options.capacity = 32 * kMiB;
    options.host_budget = 4 * kMiB;
    options.disk_budget = 64 * kMiB;
    Open(options);
  }
  // Everything the core does, as far as the driver lets it.
  void DoEverything(const std::vector<Address>& layers) {
    rig_->engine().Evict(rig_->device(), {});
    rig_->engine().Restore(rig_->device(), {});
    for (Address layer : layers) {
      rig_->Operate(kDefaultStream, {{layer, kHandle, false}}, [] {});
    }
    std::vector<Address> made;
    for (const LifetimeClass lifetime :
         {LifetimeClass::kPersistent, LifetimeClass::kTransient}) {
      for (int i = 0; i < 10; ++i) {
        auto address = rig_->Malloc(3 * kMiB, kDefaultStream, lifetime);
        if (address) made.push_back(*address);
      }
      for (Address address : made) Free(address);
      made.clear();
    }
    rig_->device().EmptyCache();
  }
};

TEST_F(EngineDriverErrorsTest, NoCallThatFailsLosesAByte) {
  OpenSmall();
  const auto layers = Layers(6);
  for (const char* call : {"cudaMemcpyAsync",
                           "cudaEventRecord",
                           "cudaEventCreateWithFlags",
                           "cudaEventQuery",
                           "cudaEventSynchronize",
                           "cudaStreamSynchronize",
                           "cudaStreamWaitEvent",
                           "cudaDeviceSynchronize",
                           "cuLaunchKernel",
                           "cuMemMap",
                           "cuMemCreate",
                           "cuMemSetAccess",
                           "cuMemUnmap",
                           "cuMemRelease",
                           "cudaHostRegister",
                           "cudaHostUnregister",
                           "cuCtxGetDevice",
                           "cuCtxPushCurrent",
                           "cuCtxPopCurrent",
                           "cudaMemGetInfo",
                           "cudaStreamQuery",
                           "cudaStreamIsCapturing"}) {
    for (int error : {kInvalidValue, kOutOfMemory, kNotReady}) {
      for (long nth : {1, 2, 5}) {
        for (int forever : {0, 1}) {
          SCOPED_TRACE(std::string(call) + " " + std::to_string(error) + " " +
                       std::to_string(nth) + (forever ? " for good" : ""));
          ASSERT_EQ(cudasim_fail(call, nth, error, forever), 0);
          DoEverything(layers);
          cudasim_clear_faults();
          ASSERT_EQ(rig_->Check(), "");
          ExpectLayers(layers);
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineDriverErrorsTest, WhatCannotBeUnmappedStays) {
  Open({});
  const auto leaves = Layers(1), gap = Layers(1), layers = Layers(2);
  FreeAll(gap);  // two runs, an unmap each
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 2, kInvalidValue, /*forever=*/1), 0);
  Result<Bytes> moved = rig_->engine().Evict(rig_->device(), {});
  ASSERT_TRUE(moved.has_value());
  EXPECT_EQ(*moved, kHandle);
  EXPECT_THAT(rig_->engine().LastRefusal(DeviceIndex{0}),
              HasSubstr("cuMemUnmap"));
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(leaves);
  ExpectLayers(layers);
  cudasim_clear_faults();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(leaves);
  ExpectLayers(layers);
  FreeAll(leaves);
  FreeAll(layers);
}

TEST_F(EngineDriverErrorsTest, WhatIsNotReleasedIsUsedAgain) {
  Open({});
  Free(Malloc(8 * kMiB));
  ASSERT_EQ(cudasim_fail("cuMemRelease", 1, kInvalidValue, /*forever=*/1), 0);
  rig_->device().EmptyCache();
  cudasim_clear_faults();
  EXPECT_EQ(rig_->Check(), "");
  const long created = cudasim_calls("cuMemCreate");
  const Address again = Malloc(8 * kMiB);
  EXPECT_EQ(cudasim_calls("cuMemCreate"), created);
  Write(again, 8 * kMiB, 1);
  ExpectReads(again, 8 * kMiB, 1);
  Free(again);
}

// Now and then the driver is not ready for a grant while work is pending: every
// second one fails, once what is waited for is over the next one does not.
TEST_F(EngineDriverErrorsTest, AGrantThatIsNotReadyIsTriedAgain) {
  OpenSmall();
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, kNotReady, /*every=*/2), 0);
  const long waits = cudasim_calls("cudaDeviceSynchronize");
  const auto layers = Layers(20);  // more than the device holds
  EXPECT_GT(cudasim_calls("cudaDeviceSynchronize"), waits);
  ExpectLayers(layers);
  for (int i = 0; i < 3; ++i) {
    Evict();
    ExpectLayers(layers);
    const Address transient =
        Malloc(5 * kMiB, kDefaultStream, LifetimeClass::kTransient);
    Write(transient, 5 * kMiB, 99);
    ExpectReads(transient, 5 * kMiB, 99);
    Free(transient);
    rig_->device().EmptyCache();
  }
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(cudasim_violation_count(), 0);
  FreeAll(layers);
}

TEST_F(EngineDriverErrorsTest, AGrantThatIsNeverReadyIsAnErrorAndNoLoss) {
  OpenSmall();
  const auto layers = Layers(6);
  Evict();
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, kNotReady, /*every=*/1), 0);
  const auto refused = rig_->Malloc(20 * kMiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kDevice);
  EXPECT_THAT(refused.error().message,
              HasSubstr("cuMemSetAccess failed: CUDA_ERROR_NOT_READY"));
  EXPECT_THAT(refused.error().message, HasSubstr("101 times in a row"));
  const auto reads = rig_->Reads(layers[0], kHandle, 1);
  ASSERT_FALSE(reads.has_value());
  EXPECT_EQ(reads.error().code, ErrorCode::kDevice);
  EXPECT_THAT(reads.error().message, HasSubstr("101 times in a row"));
  cudasim_clear_faults();
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  FreeAll(layers);
}

// As a kernel that never ends, while another thread may still get on.
TEST_F(EngineDriverErrorsTest, AMallocIsRefusedWhereNoEventIsEverDone) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  options.quiet_ns = 1'000'000;
  options.running_ns = 5'000'000;
  options.busy_ns = 50'000'000;
  Open(options);
  const auto layers = Layers(4);
  Busy busy(rig_->engine(), {{layers[0], kHandle, false}});
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, kNotReady, /*every=*/1), 0);
  const std::int64_t since = NowNs();
  const auto refused = rig_->Malloc(kHandle);
  EXPECT_LT(NowNs() - since, 30'000'000'000) << "the product's own is 60 s";
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Counters().evicted_handles, 0u);
  // What was chosen leaves once the driver says more.
  cudasim_clear_faults();
  busy.Leave();
  Free(Malloc(kHandle));
  EXPECT_GT(Counters().evicted_handles, 0u);
  ExpectLayers(layers);
  FreeAll(layers);
}

// Page tables take memory of the card, here 16 MiB that must be free.
TEST_F(EngineDriverErrorsTest, AMallocMakesRoomForPageTables) {
  Open({});  // 64 MiB
  cudasim_keep_for_page_tables(16 * kMiB);
  const auto layers = Layers(30);
  EXPECT_GT(Counters().evicted_handles, 0u);
  ExpectLayers(layers);
  EXPECT_EQ(rig_->Check(), "");
  FreeAll(layers);
}

TEST_F(EngineDriverErrorsTest, ARestoreMakesRoomForPageTables) {
  Open({});
  const auto layers = Layers(8);
  EXPECT_EQ(Evict(), 8 * kHandle);
  // What left is kept for reuse; another process has nearly all the rest.
  cudasim_keep_for_page_tables(16 * kMiB);
  ASSERT_EQ(cudasim_take_memory(0, 46 * kMiB), 46 * kMiB);
  // The first takes what is kept, the others' memory leaves again for them.
  ExpectLayers(layers);
  EXPECT_GT(Counters().evicted_handles, 8u);
  const AddressRange last{layers.front(), kHandle};
  EXPECT_TRUE(rig_->engine().Restore(rig_->device(), {&last, 1}).has_value());
  EXPECT_EQ(rig_->StateOf(layers.front()), HandleState::kResident);
  EXPECT_EQ(rig_->Check(), "");
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineDriverErrorsTest, WithoutRoomForPageTablesTheErrorSaysSo) {
  Open({});
  const auto layers = Layers(2);
  Evict();
  cudasim_keep_for_page_tables(65 * kMiB);  // there never are
  const auto reads = rig_->Reads(layers[0], kHandle, 1);
  ASSERT_FALSE(reads.has_value());
  EXPECT_EQ(reads.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(reads.error().message, HasSubstr("cuMemSetAccess"));
  EXPECT_FALSE(rig_->Malloc(kHandle).has_value());
  EXPECT_EQ(rig_->Check(), "");
  cudasim_clear_faults();
  ExpectLayers(layers);
  FreeAll(layers);
}

// Once the device has summed that many handles, what writes to the next one is
// nobody that we see.
struct ForeignWriter {
  static inline int sums_before = -1;
  static inline std::uint64_t wrote_to = 0;

  static void Twin(void** arguments, const unsigned* grid,
                   const unsigned* block) {
    if (sums_before-- == 0) {
      wrote_to = *static_cast<const std::uint64_t*>(arguments[0]);
      Rig::Fill(Address{wrote_to}, kHandle, kWritten);
    }
    cudasim::ChecksumTwin(arguments, grid, block);
  }
  static constexpr std::uint64_t kWritten = 77;

  explicit ForeignWriter(int after) {
    sums_before = after;
    wrote_to = 0;
    cudasim_register_twin(cudasim::kChecksumKernel, &Twin);
  }
  ~ForeignWriter() {
    cudasim_register_twin(cudasim::kChecksumKernel, &cudasim::ChecksumTwin);
  }
};

TEST_F(EngineDriverErrorsTest, BytesThatChangeWhileTheyAreCopiedStay) {
  for (const bool to_disk : {false, true}) {
    Rig::Options options;
    if (to_disk) {
      options.host_budget = 0;
      options.disk_budget = 64 * kMiB;
    }
    Open(options);
    const auto layers = Layers(3);
    {
      ForeignWriter writer(3);
      EXPECT_EQ(Evict(), 2 * kHandle) << to_disk;
    }
    EXPECT_THAT(rig_->engine().LastRefusal(DeviceIndex{0}),
                HasSubstr("while it was copied out"));
    EXPECT_EQ(rig_->Check(), "");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const bool written = layers[i] == Address{ForeignWriter::wrote_to};
      ExpectReads(layers[i], kHandle,
                  written ? ForeignWriter::kWritten : i + 1);
      if (written) Write(layers[i], kHandle, i + 1);
    }
    EXPECT_EQ(Evict(), 3 * kHandle);
    ExpectLayers(layers);
    FreeAll(layers);
    ASSERT_EQ(rig_->Close(), "");
    rig_.reset();
  }
}

}  // namespace
}  // namespace stratalloc
