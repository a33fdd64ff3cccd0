// SPDX-License-Identifier: Apache-2.0
// Fixture of the checker's tests: operators, edges between streams, and the
// violation that a case expects.
#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CHECKER_FIXTURE_TEST_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CHECKER_FIXTURE_TEST_H_

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {

class CheckerTest : public TwoStreamsTest {
 protected:
  void TearDown() override {
    cudasim_set_thread_clocks(0);
    TwoStreamsTest::TearDown();
  }

  // A bridged operator on 512 bytes of the block.
  void Operator(const char* name, CUdeviceptr address, cudaStream_t stream,
                int write) {
    const cudasim_access access = {address, 512, write};
    cudasim_note_access(stream, name, &access, 1);
  }
  void Edge(cudaStream_t earlier, cudaStream_t later) {
    ASSERT_EQ(cudaEventRecord(event_, earlier), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(later, event_, 0), cudaSuccess);
  }
  static std::string Kind(long index) {
    char text[64] = "";
    return cudasim_violation_kind(index, text, sizeof(text)) < 0 ? "" : text;
  }
  static std::string Name(cudaStream_t stream) {
    char text[40];
    std::snprintf(
        text, sizeof(text), "stream 0x%llx",
        static_cast<unsigned long long>(reinterpret_cast<uint64_t>(stream)));
    return text;
  }
  void ExpectOne(const char* kind) {
    ASSERT_EQ(cudasim_violation_count(), 1) << Violation(0) << Violation(1);
    EXPECT_EQ(Kind(0), kind);
    EXPECT_THAT(Violation(0), testing::StartsWith(std::string(kind) + ": "));
  }
  void ExpectClean() {
    EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  }
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CHECKER_FIXTURE_TEST_H_
