// SPDX-License-Identifier: Apache-2.0
#include "allocator/out_of_memory_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stratalloc {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLink =
    "  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/"
    "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";

OutOfMemoryFacts Facts() {
  OutOfMemoryFacts facts;
  facts.requested = 32 * kMiB;
  facts.device = DeviceIndex{1};
  facts.total = 64 * kMiB;
  facts.free = 10 * kMiB;
  facts.limit = 64 * kMiB;
  facts.allocated = 48 * kMiB;
  facts.reserved = 54 * kMiB;
  facts.own_pid = 7;
  return facts;
}

TEST(OutOfMemoryText, IsNativesFromTheFirstWordToTheLast) {
  EXPECT_EQ(OutOfMemoryText(Facts()),
            "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 1 has a "
            "total capacity of 64.00 MiB of which 10.00 MiB is free. Of the "
            "allocated memory 48.00 MiB is allocated by PyTorch, and 6.00 MiB "
            "is reserved by PyTorch but unallocated." +
                std::string(kLink));
}

TEST(OutOfMemoryText, WhatIsOnlyNowAndThenSoStandsInNativesPlaces) {
  OutOfMemoryFacts facts = Facts();
  facts.limit = 56 * kMiB;
  facts.in_private_pools = 4 * kMiB;
  facts.processes = {{7, 50 * kMiB}, {9, 4 * kMiB}};
  EXPECT_THAT(
      OutOfMemoryText(facts),
      HasSubstr("10.00 MiB is free. Including non-PyTorch memory, this process "
                "has 50.00 MiB memory in use. Process 9 has 4.00 MiB memory in "
                "use. 56.00 MiB allowed; Of the allocated memory 48.00 MiB is "
                "allocated by PyTorch, with 4.00 MiB allocated in private "
                "pools (e.g., CUDA Graphs), and 6.00 MiB is reserved"));
}

TEST(OutOfMemoryText, MoreAllocatedThanReservedLeavesNothingUnallocated) {
  OutOfMemoryFacts facts = Facts();
  facts.reserved = 40 * kMiB;  // the rest has left the device
  EXPECT_THAT(OutOfMemoryText(facts),
              HasSubstr("and 0 bytes is reserved by PyTorch but unallocated."));
}

TEST(OutOfMemoryText, WhyNothingMoreWasEvictedComesBeforeTheLink) {
  OutOfMemoryFacts facts = Facts();
  facts.refusal = "the host budget is spent.";
  EXPECT_THAT(OutOfMemoryText(facts),
              EndsWith("unallocated. stratalloc could not evict more: the host "
                       "budget is spent." +
                       std::string(kLink)));
  facts.refusal.clear();
  facts.why_no_reclaimer = "tiering is off.";
  EXPECT_THAT(OutOfMemoryText(facts),
              EndsWith("unallocated. stratalloc can evict nothing from this "
                       "GPU: tiering is off." +
                       std::string(kLink)));
}

TEST(OutOfMemoryText, OurSentencesEndBeforeNativesGoOn) {
  OutOfMemoryFacts facts = Facts();
  facts.refusal = "on the device: 4.00 MiB activations";
  EXPECT_THAT(OutOfMemoryText(facts),
              EndsWith("4.00 MiB activations." + std::string(kLink)));
  facts.refusal.clear();
  facts.why_no_reclaimer = "tiering is off";
  EXPECT_THAT(OutOfMemoryText(facts),
              EndsWith("GPU: tiering is off." + std::string(kLink)));
}

TEST(OutOfMemoryText, ALongListOfProcessesIsSummedUpButForThisOne) {
  OutOfMemoryFacts facts = Facts();
  for (unsigned pid = 100; pid < 118; ++pid) {
    facts.processes.push_back({pid, 2 * kMiB});
  }
  facts.processes.push_back({7, 5 * kMiB});
  const std::string text = OutOfMemoryText(facts);
  EXPECT_THAT(text, HasSubstr("Process 115 has 2.00 MiB memory in use. "
                              "Including non-PyTorch memory, this process has "
                              "5.00 MiB memory in use. Further processes have "
                              "4.00 MiB memory in use. Of the allocated"));
  EXPECT_THAT(text, Not(HasSubstr("Process 116")));
}

}  // namespace
}  // namespace stratalloc
