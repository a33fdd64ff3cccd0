// SPDX-License-Identifier: Apache-2.0
// Fixture of the engine's capture tests: a stream to capture, routes, captures
// that end and captures that fail.
#ifndef STRATALLOC_TIERING_ENGINE_ENGINE_CAPTURE_FIXTURE_TEST_H_
#define STRATALLOC_TIERING_ENGINE_ENGINE_CAPTURE_FIXTURE_TEST_H_

#include <gtest/gtest.h>

#include <span>
#include <utility>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {

inline constexpr PoolId kGraph{1, 0};

class EngineCaptureTest : public EngineTest {
 protected:
  // A rig with `n` layers, and a stream to capture.
  std::vector<Address> OpenWith(int n) {
    Open({});
    stream_ = rig_->NewStream();
    return Layers(n);
  }
  void ReleaseAndFree(const std::vector<Address>& layers) {
    Release();
    ExpectLayers(layers);
    FreeAll(layers);
  }
  // What torch does before it captures, and then.
  void Route(StreamId stream) {
    ASSERT_TRUE(
        rig_->device()
            .BeginAllocateToPool(
                kGraph,
                [stream](StreamId s) { return s == stream && Captures(s); },
                stream)
            .has_value());
  }
  static void StartCapture(StreamId stream) {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream),
                                     cudaStreamCaptureModeGlobal),
              cudaSuccess);
  }
  void Begin(StreamId stream, bool allocates = true) {
    Route(stream);
    StartCapture(stream);
    if (allocates) inside_ = Malloc(kHandle, stream);
  }
  void End(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess)
        << "something spoiled it";
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
    if (inside_ != 0) Free(std::exchange(inside_, 0));
  }
  // Without torch, and noticed by the operator of it that allocates.
  void BeginRaw(StreamId stream) {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream),
                                     cudaStreamCaptureModeRelaxed),
              cudaSuccess);
    rig_->device().NoteCapture(stream);
    ASSERT_TRUE(rig_->device().MayCapture());
  }
  static void EndRaw(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  void Read(Address address, StreamId stream) {
    const Access access{address, kHandle, /*written=*/false};
    const Status entered =
        rig_->engine().EnterOperator(stream, "read", {&access, 1});
    ASSERT_TRUE(entered.has_value()) << entered.error().message;
    rig_->engine().LeaveOperator();
  }
  // The same through the engine, as torch's capture_begin does it.
  void BeginReading(StreamId stream, std::span<const Access> reads) {
    const Status begun = rig_->engine().BeginAllocateToPool(
        rig_->device(), kGraph,
        [stream](StreamId s) { return Captures(s) && s == stream; }, stream,
        reads);
    ASSERT_TRUE(begun.has_value()) << begun.error().message;
    StartCapture(stream);
  }
  static bool Captures(StreamId stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(Rig::ToCuda(stream), &status), cudaSuccess);
    return status != cudaStreamCaptureStatusNone;
  }
  static void Spoil(StreamId stream) {  // by what may not be asked inside
    EXPECT_NE(cudaStreamSynchronize(Rig::ToCuda(stream)), cudaSuccess);
  }
  static void EndSpoilt(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
  }
  void Release() {
    ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
  }

  StreamId stream_{};
  Address inside_ = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ENGINE_CAPTURE_FIXTURE_TEST_H_
