// SPDX-License-Identifier: Apache-2.0
//
// One graph, asked in the words of the driver and of the runtime: the answers
// are right, and the same.

#include <gmock/gmock.h>

#include <vector>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::ElementsAre;

// a -> b, and c by itself.
class GraphCallsTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    ASSERT_EQ(cudaGraphCreate(&graph_, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphAddEmptyNode(&a_, graph_, nullptr, 0), cudaSuccess);
    ASSERT_EQ(cuGraphAddEmptyNode(&b_, graph_, &a_, 1), CUDA_SUCCESS);
    ASSERT_EQ(cudaGraphAddEmptyNode(&c_, graph_, nullptr, 0), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cuGraphDestroy(graph_), CUDA_SUCCESS);
    SimulatorTest::TearDown();
  }

  // The nodes that both calls answer with; none if they differ.
  template <typename Runtime, typename Driver>
  static std::vector<CUgraphNode> Both(const Runtime& runtime,
                                       const Driver& driver) {
    std::vector<CUgraphNode> first(8), second(8);
    size_t count = first.size(), other = second.size();
    EXPECT_EQ(runtime(first.data(), &count), cudaSuccess);
    EXPECT_EQ(driver(second.data(), &other), CUDA_SUCCESS);
    first.resize(count);
    second.resize(other);
    EXPECT_EQ(first, second);
    return first == second ? first : std::vector<CUgraphNode>();
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphNode_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
};

TEST_F(GraphCallsTest, NodesAndRoots) {
  EXPECT_THAT(
      Both(
          [&](auto* out, auto* n) { return cudaGraphGetNodes(graph_, out, n); },
          [&](auto* out, auto* n) { return cuGraphGetNodes(graph_, out, n); }),
      ElementsAre(a_, b_, c_));
  EXPECT_THAT(
      Both([&](auto* out,
               auto* n) { return cudaGraphGetRootNodes(graph_, out, n); },
           [&](auto* out, auto* n) {
             return cuGraphGetRootNodes(graph_, out, n);
           }),
      ElementsAre(a_, c_));
}

TEST_F(GraphCallsTest, NeighboursAndEdges) {
  const auto before = [&](CUgraphNode node) {
    return Both(
        [&](auto* out, auto* n) {
          return cudaGraphNodeGetDependencies(node, out, nullptr, n);
        },
        [&](auto* out, auto* n) {
          return cuGraphNodeGetDependencies(node, out, nullptr, n);
        });
  };
  const auto after = [&](CUgraphNode node) {
    return Both(
        [&](auto* out, auto* n) {
          return cudaGraphNodeGetDependentNodes(node, out, nullptr, n);
        },
        [&](auto* out, auto* n) {
          return cuGraphNodeGetDependentNodes(node, out, nullptr, n);
        });
  };
  EXPECT_THAT(before(b_), ElementsAre(a_));
  EXPECT_THAT(after(a_), ElementsAre(b_));
  EXPECT_THAT(before(a_), ElementsAre());
  EXPECT_THAT(after(c_), ElementsAre());
  // Added in the one's words, seen and taken back in the other's.
  ASSERT_EQ(cuGraphAddDependencies(graph_, &b_, &c_, nullptr, 1), CUDA_SUCCESS);
  EXPECT_THAT(after(b_), ElementsAre(c_));
  ASSERT_EQ(cudaGraphRemoveDependencies(graph_, &b_, &c_, nullptr, 1),
            cudaSuccess);
  EXPECT_THAT(after(b_), ElementsAre());
}

TEST_F(GraphCallsTest, ARefusalIsTheRuntimesLastErrorInItsWordsAlone) {
  CUgraphNode node = nullptr;
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cuGraphAddHostNode(&node, graph_, nullptr, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaGraphAddHostNode(&node, graph_, nullptr, 0, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  // Counted and failed by their own names, too.
  EXPECT_EQ(cudasim_calls("cuGraphAddHostNode"), 1);
  EXPECT_EQ(cudasim_calls("cudaGraphAddHostNode"), 1);
}

}  // namespace
}  // namespace cudasim
