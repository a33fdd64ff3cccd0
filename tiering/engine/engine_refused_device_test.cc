// SPDX-License-Identifier: Apache-2.0
// Two devices of which the first takes no part in tiering, for whatever reason:
// the second does as if it were alone, and who asks for the first is told why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr PoolId kGraph{1, 0};

struct Refusal {
  const char* name;
  std::function<void()> prepare;
  const char* reason;
};

class RefusedDeviceTest : public EngineTest {
 protected:
  void OpenRefused(const std::function<void()>& prepare) {
    Rig::Options options;
    options.devices = 2;
    options.refusals = true;
    options.prepare = prepare;
    Open(options);
    cudaSetDevice(1);  // whose default stream the operators run on
    for (int i = 0; i < 3; ++i) {
      layers_.push_back(MallocOn(1));
      Write(layers_.back(), kHandle, static_cast<std::uint64_t>(i + 1));
    }
    other_ = MallocOn(0);
  }
  void TearDown() override {
    for (const Address layer : layers_) {
      EXPECT_TRUE(rig_->device(1).Free(layer).has_value());
    }
    EXPECT_TRUE(rig_->device(0).Free(other_).has_value());
    EngineTest::TearDown();
    cudaSetDevice(0);
    EXPECT_EQ(cudasim_set_virtual_memory(-1, 1), 0);
  }
  Address MallocOn(std::size_t device) {
    auto block = rig_->device(device).Malloc(
        {kHandle, kDefaultStream, LifetimeClass::kPersistent, {}});
    EXPECT_TRUE(block.has_value()) << block.error().message;
    return block ? block->address : 0;
  }
  Bytes EvictThere() {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(1), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }

  void ExpectTold(const char* reason) {
    for (const Result<Bytes>& moved :
         {rig_->engine().Evict(rig_->device(0), {}),
          rig_->engine().Restore(rig_->device(0), {})}) {
      ASSERT_FALSE(moved.has_value());
      EXPECT_EQ(moved.error().code, ErrorCode::kUnsupported);
      EXPECT_THAT(moved.error().message,
                  HasSubstr("GPU 0 takes no part in tiering"));
      EXPECT_THAT(moved.error().message, HasSubstr(reason));
    }
    auto refused = rig_->device(0).Malloc(
        {Bytes{1} << 40, kDefaultStream, LifetimeClass::kPersistent, {}});
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message,
                HasSubstr("can evict nothing from this GPU: "));
    EXPECT_THAT(refused.error().message, HasSubstr(reason));
  }

  std::vector<Address> layers_;
  Address other_ = 0;
};

std::function<void()> Failing(const char* call, long nth = 1) {
  return [=] { ASSERT_EQ(cudasim_fail(call, nth, 1, /*forever=*/0), 0); };
}

// Comes before the others: a process loads the kernel once.
TEST_F(RefusedDeviceTest, AKernelThatDoesNotLoad) {
  OpenRefused(Failing("cuModuleLoadData"));
  ExpectTold("cuModuleLoadData");
  EXPECT_EQ(EvictThere(), 3 * kHandle);
  ExpectLayers(layers_);
}

class EngineRefusedDeviceTest : public RefusedDeviceTest,
                                public testing::WithParamInterface<Refusal> {
 protected:
  void SetUp() override { OpenRefused(GetParam().prepare); }
};

TEST_P(EngineRefusedDeviceTest, TheOtherDeviceLosesNothing) {
  EXPECT_EQ(EvictThere(), 3 * kHandle);
  ExpectLayers(layers_);
  EXPECT_EQ(EvictThere(), 3 * kHandle);
  Result<Bytes> back = rig_->engine().Restore(rig_->device(1), {});
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, 3 * kHandle);
  // An operator on both.
  EXPECT_EQ(EvictThere(), 3 * kHandle);
  const Access both[] = {{other_, kHandle, true}, {layers_[0], kHandle, false}};
  ASSERT_TRUE(
      rig_->engine().EnterOperator(kDefaultStream, "copy", both).has_value());
  rig_->engine().LeaveOperator();
  EXPECT_EQ(rig_->StateOf(layers_[0]), HandleState::kResident);
  BlockPin pin;
  const AddressRange range{layers_[1], kHandle};
  ASSERT_TRUE(
      rig_->engine()
          .PinBlocks("pin()", PinReason::kProgram, {&range, 1}, {&pin, 1})
          .has_value());
  EXPECT_NE(pin.serial, 0u);
  rig_->engine().UnpinBlock(pin, true);
}

TEST_P(EngineRefusedDeviceTest, WhoAsksIsToldWhy) {
  ExpectTold(GetParam().reason);
}

// Everything: what takes no part is passed over.
TEST_P(EngineRefusedDeviceTest, AllMeansThoseThatTakePart) {
  Result<Bytes> moved = rig_->engine().EvictAll();
  ASSERT_TRUE(moved.has_value()) << moved.error().message;
  EXPECT_EQ(*moved, 3 * kHandle);
  moved = rig_->engine().RestoreAll();
  ASSERT_TRUE(moved.has_value()) << moved.error().message;
  EXPECT_EQ(*moved, 3 * kHandle);
}

// Without an evictor, a device that is full says so.
TEST_P(EngineRefusedDeviceTest, AFullDeviceIsFull) {
  std::vector<Address> blocks;
  for (int i = 0; i < 64; ++i) {
    auto block = rig_->device(0).Malloc(
        {kHandle, kDefaultStream, LifetimeClass::kPersistent, {}});
    if (!block) {
      EXPECT_EQ(block.error().code, ErrorCode::kOutOfMemory);
      break;
    }
    blocks.push_back(block->address);
  }
  EXPECT_LT(blocks.size(), 32u);
  for (const Address block : blocks) {
    EXPECT_TRUE(rig_->device(0).Free(block).has_value());
  }
}

// Its graphs read other devices' memory as any graph does.
TEST_P(EngineRefusedDeviceTest, WhatItsGraphsReadElsewhereStays) {
  const StreamId stream = rig_->NewStream();
  ASSERT_TRUE(rig_->device(0)
                  .BeginAllocateToPool(
                      kGraph,
                      [this](StreamId s) {
                        return rig_->device(0).device().IsCapturing(s);
                      },
                      stream)
                  .has_value());
  ASSERT_EQ(
      cudaStreamBeginCapture(Rig::ToCuda(stream), cudaStreamCaptureModeGlobal),
      cudaSuccess);
  auto inside =
      rig_->device(0).Malloc({kHandle, stream, LifetimeClass::kTransient, {}});
  ASSERT_TRUE(inside.has_value()) << inside.error().message;
  const Access read{layers_[0], kHandle, false};
  ASSERT_TRUE(
      rig_->engine().EnterOperator(stream, "copy", {&read, 1}).has_value());
  rig_->engine().LeaveOperator();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_TRUE(rig_->device(0).EndAllocateToPool(kGraph).has_value());
  EXPECT_TRUE(rig_->device(0).Free(inside->address).has_value());
  EXPECT_EQ(EvictThere(), 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers_[0]), HandleState::kResident);
  ASSERT_TRUE(rig_->device(0).ReleasePool(kGraph).has_value());
  // It may still run there: that device is waited for.
  const long waits = cudasim_calls("cudaDeviceSynchronize");
  EXPECT_EQ(EvictThere(), kHandle);
  EXPECT_EQ(cudasim_calls("cudaDeviceSynchronize"), waits + 2);
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, EngineRefusedDeviceTest,
    testing::Values(
        Refusal{"Streams", Failing("cudaStreamCreateWithFlags"),
                "cudaStreamCreateWithFlags"},
        Refusal{"SecondStream", Failing("cudaStreamCreateWithFlags", 2),
                "cudaStreamCreateWithFlags"},
        Refusal{"Pinning", Failing("cudaHostRegister"), "cudaHostRegister"},
        // The result of the kernel's trial may still come.
        Refusal{"Waiting", Failing("cudaStreamSynchronize"),
                "cudaStreamSynchronize"},
        Refusal{"VirtualMemory",
                [] { ASSERT_EQ(cudasim_set_virtual_memory(0, 0), 0); },
                "no virtual memory management"}),
    [](const auto& given) { return std::string(given.param.name); });

}  // namespace
}  // namespace stratalloc
