// SPDX-License-Identifier: Apache-2.0
#include "allocator/ladder/out_of_memory_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace stratalloc {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

OutOfMemoryFacts Facts() {
  OutOfMemoryFacts facts;
  facts.requested = 32 * kMiB;
  facts.device = DeviceIndex{1};
  facts.total = 64 * kMiB;
  facts.free = 10 * kMiB;
  facts.own_pid = 7;
  return facts;
}

TEST(OutOfMemoryText, BeginsWithTheSentencesOfNative) {
  EXPECT_EQ(OutOfMemoryText(Facts()),
            "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 1 has a "
            "total capacity of 64.00 MiB of which 10.00 MiB is free.");
}

TEST(OutOfMemoryText, NamesTheProcessesAsNativeDoes) {
  OutOfMemoryFacts facts = Facts();
  facts.processes = {{7, 50 * kMiB}, {9, 4 * kMiB}};
  EXPECT_THAT(
      OutOfMemoryText(facts),
      EndsWith("10.00 MiB is free. Including non-PyTorch memory, this process "
               "has 50.00 MiB memory in use. Process 9 has 4.00 MiB memory in "
               "use."));
}

TEST(OutOfMemoryText, ReasonsOfTheTiersEndAsSentences) {
  OutOfMemoryFacts facts = Facts();
  for (const char* stop : {"", "."}) {
    facts.refusal = std::string("the host budget is spent") + stop;
    facts.why_no_reclaimer.clear();
    EXPECT_THAT(OutOfMemoryText(facts),
                EndsWith("is free. stratalloc could not evict more: the host "
                         "budget is spent."));
    facts.refusal.clear();
    facts.why_no_reclaimer = std::string("tiering is off") + stop;
    EXPECT_THAT(OutOfMemoryText(facts),
                EndsWith("is free. stratalloc can evict nothing from this GPU: "
                         "tiering is off."));
  }
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
                              "4.00 MiB memory in use."));
  EXPECT_THAT(text, Not(HasSubstr("Process 116")));
}

}  // namespace
}  // namespace stratalloc
