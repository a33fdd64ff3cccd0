// SPDX-License-Identifier: Apache-2.0
// What the driver refuses is done without, flag by flag, and nothing is left.
#include "allocator/cuda/handle_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNotReady = 600;

class HandleProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    SetCard("h200");
  }
  void TearDown() override {
    cudasim_clear_faults();
    char text[1024];
    cudasim_leak_report(text, sizeof text);
    EXPECT_STREQ(text, "no leaks\n");
    SetCard("generic");
  }
  static void SetCard(const char* name) {
    ASSERT_EQ(cudasim_set_card(0, name), 0);
  }
  static Device Probe() {
    return ProbeHandles(Device::Open(DeviceIndex{0}).value());
  }
  static std::string Kind(const Device& device) {
    if (!device.has_virtual_memory()) return "none";
    const HandleKind kind = device.handles();
    return std::string(kind.exportable ? "exportable " : "") +
           (kind.rdma ? "rdma" : "");
  }
  static std::string WhyNotExported(const Device& device) {
    const PhysicalHandle handle =
        device.CreateHandle(device.granularity()).value();
    const Result<int> exported = device.ExportHandle(handle);
    EXPECT_FALSE(exported);
    EXPECT_TRUE(device.ReleaseHandle(handle));
    return exported ? "" : exported.error().message;
  }
};

TEST_F(HandleProbeTest, ACardHasWhatItSaysAndMore) {
  EXPECT_EQ(Kind(Probe()), "exportable rdma");
  SetCard("generic");  // says nothing of RDMA, so nobody asks for it
  const long created = cudasim_calls("cuMemCreate");
  EXPECT_EQ(Kind(Probe()), "exportable ");
  EXPECT_EQ(cudasim_calls("cuMemCreate"), created + 1);
}

// It says that it has RDMA, makes such handles and maps none.
TEST_F(HandleProbeTest, UnderWsl2NeitherFlagIsLeft) {
  SetCard("wsl2");
  const Device device = Probe();
  EXPECT_EQ(Kind(device), "");
  EXPECT_THAT(WhyNotExported(device),
              HasSubstr("cuMemCreate failed: CUDA_ERROR_INVALID_VALUE"));
}

TEST_F(HandleProbeTest, EachFlagIsGivenUpAlone) {
  // The first kind's handle, then its access rights.
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    ASSERT_EQ(cudasim_fail(call, 1, 999, 0), 0);
    EXPECT_EQ(Kind(Probe()), "exportable ") << call;
  }
  ASSERT_EQ(cudasim_apply_profile(0, R"({"exports_handles": 0})"), 0);
  EXPECT_EQ(Kind(Probe()), "rdma");
}

TEST_F(HandleProbeTest, ADriverThatMapsNothingIsUsedWithout) {
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, kInvalidValue, /*every=*/1), 0);
  const Device device = Probe();
  EXPECT_EQ(Kind(device), "none");
  EXPECT_THAT(device.why_no_virtual_memory(),
              HasSubstr("it maps no memory: cuMemSetAccess failed"));
}

TEST_F(HandleProbeTest, AFullCardDecidesNothing) {
  cudasim_take_memory(0, cudasim_capacity(0));
  const Device device = Probe();
  EXPECT_EQ(Kind(device), "");
  cudasim_take_memory(0, 0);
  EXPECT_THAT(WhyNotExported(device), HasSubstr("could not be tried"));
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, kOutOfMemory, 0), 0);
  EXPECT_EQ(Kind(Probe()), "");
}

TEST_F(HandleProbeTest, ADriverThatIsNotReadyIsAskedAgain) {
  ASSERT_EQ(cudasim_fail("cuMemSetAccess", 1, kNotReady, 0), 0);
  EXPECT_EQ(Kind(Probe()), "exportable rdma");
}

}  // namespace
}  // namespace stratalloc
