// SPDX-License-Identifier: Apache-2.0
#include "allocator/streams/pool_routes.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "allocator/memory/external_streams.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0}, kUser{0, 1};

class PoolRoutesTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    now_ = 0;
    Result<Device> device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    device_ = std::make_unique<const Device>(*std::move(device));
    routes_ = std::make_unique<PoolRoutes>(*device_, [] { return now_; });
  }
  static cudaStream_t ToCuda(StreamId stream) {
    return reinterpret_cast<cudaStream_t>(Raw(stream));
  }
  StreamId NewStream() {
    cudaStream_t raw = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking),
              cudaSuccess);
    return StreamId{reinterpret_cast<std::uint64_t>(raw)};
  }
  static void Begin(StreamId stream) {
    ASSERT_EQ(
        cudaStreamBeginCapture(ToCuda(stream), cudaStreamCaptureModeRelaxed),
        cudaSuccess);
  }
  static void End(StreamId stream) {
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(ToCuda(stream), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  // As torch's capture_begin sets it.
  void AddOfCapture(PoolId pool, StreamId stream) {
    const auto set = [&, pool, stream] {
      routes_->Add({.pool = pool,
                    .filter =
                        [this, stream](StreamId asked) {
                          ++filtered_;
                          return asked == stream &&
                                 device_->IsCapturing(stream);
                        },
                    .stream = stream,
                    .thread = std::this_thread::get_id(),
                    .of_capture = true});
    };
    elsewhere_ ? std::thread(set).join() : set();
  }

  static inline std::int64_t now_ = 0;
  int filtered_ = 0;        // how often torch's filter was asked
  bool elsewhere_ = false;  // another thread sets the routes
  std::unique_ptr<const Device> device_;
  std::unique_ptr<PoolRoutes> routes_;
};

TEST_F(PoolRoutesTest, TheLastThatAcceptsTheStreamWins) {
  EXPECT_FALSE(routes_->MayRoute());
  EXPECT_EQ(routes_->For(StreamId{8}), nullptr);
  for (const PoolId pool : {kGraph, kUser}) {
    routes_->Add({.pool = pool, .filter = [pool](StreamId asked) {
                    return pool == kGraph || asked == StreamId{8};
                  }});
  }
  EXPECT_TRUE(routes_->MayRoute());
  EXPECT_FALSE(routes_->MayCapture()) << "these are of MemPools";
  EXPECT_EQ(routes_->For(StreamId{8})->pool, kUser);
  EXPECT_EQ(routes_->For(StreamId{16})->pool, kGraph);
  routes_->Remove(routes_->Of(kUser));
  EXPECT_EQ(routes_->For(StreamId{8})->pool, kGraph);
  routes_->Remove(routes_->Of(kGraph));
  EXPECT_FALSE(routes_->MayRoute());
}

TEST_F(PoolRoutesTest, ACaptureIsOpenUntilItsRouteIsTakenBack) {
  elsewhere_ = true;
  const StreamId stream = NewStream();
  AddOfCapture(kGraph, stream);
  EXPECT_TRUE(routes_->SomeOpen());
  EXPECT_EQ(routes_->For(stream), nullptr) << "it has yet to begin";
  EXPECT_TRUE(routes_->Settle().empty());
  EXPECT_TRUE(routes_->SomeDoubtful());
  Begin(stream);
  now_ += 1'000'000'000'000;
  EXPECT_TRUE(routes_->Settle().empty());
  EXPECT_FALSE(routes_->SomeDoubtful());
  EXPECT_EQ(routes_->For(stream)->pool, kGraph);
  End(stream);
  routes_->Remove(routes_->Of(kGraph));
  EXPECT_FALSE(routes_->MayCapture());
}

TEST_F(PoolRoutesTest, ACaptureIsOfTheThreadThatBeganIt) {
  const StreamId stream = NewStream();
  for (const bool routed : {true, false}) {
    for (const bool elsewhere : {true, false}) {
      SCOPED_TRACE((routed ? "routed, " : "noted, ") +
                   std::string(elsewhere ? "elsewhere" : "here"));
      elsewhere_ = elsewhere;
      const std::uint64_t before = routes_->times_over();
      Begin(stream);
      if (routed) {
        AddOfCapture(kGraph, stream);
      } else if (elsewhere) {
        std::thread([&] { routes_->NoteCapture(stream); }).join();
      } else {
        routes_->NoteCapture(stream);
      }
      EXPECT_TRUE(routes_->MayCapture());
      EXPECT_EQ(routes_->IsOfThisThread(), !elsewhere);
      EXPECT_EQ(routes_->times_over(), before);
      End(stream);
      if (routed) {
        routes_->Remove(routes_->Of(kGraph));
      } else {
        EXPECT_FALSE(routes_->SomeNotedCapture());
      }
      EXPECT_FALSE(routes_->IsOfThisThread());
      EXPECT_EQ(routes_->times_over(), before + 1);
    }
  }
}

// A thread that frees what a stream uses, or records it, captures nothing.
TEST_F(PoolRoutesTest, ACaptureIsOfWhoeverWorksOnIt) {
  const StreamId stream = NewStream();
  Begin(stream);
  EXPECT_TRUE(routes_->NoteCapture(stream, /*works_on_it=*/false));
  EXPECT_TRUE(routes_->MayCapture());
  EXPECT_FALSE(routes_->IsOfThisThread());
  std::thread([&] { routes_->NoteCapture(stream, false); }).join();
  EXPECT_TRUE(routes_->NoteCapture(stream));
  EXPECT_TRUE(routes_->IsOfThisThread());
  std::thread([&] {
    EXPECT_TRUE(routes_->NoteCapture(stream));
    EXPECT_FALSE(routes_->IsOfThisThread()) << "it was first";
  }).join();
  EXPECT_TRUE(routes_->IsOfThisThread());
  End(stream);
  EXPECT_FALSE(routes_->SomeNotedCapture());
}

TEST_F(PoolRoutesTest, ItsOwnThreadKnowsAtOnceThatItFailed) {
  const StreamId stream = NewStream();
  AddOfCapture(kGraph, stream);
  Begin(stream);
  EXPECT_TRUE(routes_->Settle().empty());
  End(stream);
  ASSERT_EQ(routes_->Settle().size(), 1u);
  EXPECT_TRUE(routes_->Of(kGraph)->over);
  EXPECT_FALSE(routes_->MayCapture());
  EXPECT_FALSE(routes_->MayRoute());
  filtered_ = 0;
  EXPECT_EQ(routes_->For(stream), nullptr);
  EXPECT_EQ(filtered_, 0) << "its filter would ask the driver each time";
  EXPECT_TRUE(routes_->Settle().empty()) << "told once";
}

TEST_F(PoolRoutesTest, OthersLookForASecond) {
  elsewhere_ = true;
  const StreamId stream = NewStream();
  AddOfCapture(kGraph, stream);
  for (int i = 0; i < PoolRoutes::kLooks - 1; ++i) {
    EXPECT_TRUE(routes_->Settle().empty());
    EXPECT_TRUE(routes_->Settle().empty()) << "too soon to count";
    now_ += PoolRoutes::kLookNs;
  }
  // However late: a process that slept has not looked.
  now_ += 1'000'000'000'000;
  Begin(stream);
  EXPECT_TRUE(routes_->Settle().empty());
  End(stream);
  for (int i = 0; i < PoolRoutes::kLooks - 1; ++i) {
    EXPECT_TRUE(routes_->Settle().empty());
    now_ += PoolRoutes::kLookNs;
  }
  EXPECT_EQ(routes_->Settle().size(), 1u);
}

TEST_F(PoolRoutesTest, AStreamThatMayBeDestroyedIsNotAsked) {
  const StreamId stream = NewStream(), other = NewStream();
  ExternalStreams::Add(stream);
  ExternalStreams::Add(other);
  elsewhere_ = true;
  AddOfCapture(kGraph, stream);
  elsewhere_ = false;
  AddOfCapture(kUser, other);
  Begin(other);
  EXPECT_TRUE(routes_->NoteCapture(other)) << "by who uses it";
  EXPECT_TRUE(routes_->Settle().empty());
  End(other);
  EXPECT_EQ(routes_->Settle().size(), 1u) << "the one seen to capture";
  const long before = cudasim_violation_count();
  for (const StreamId gone : {stream, other}) {
    ASSERT_EQ(cudaStreamDestroy(ToCuda(gone)), cudaSuccess);
  }
  for (int i = 0; i < 2 * PoolRoutes::kLooks; ++i) {
    now_ += PoolRoutes::kLookNs;
    EXPECT_TRUE(routes_->Settle().empty());
  }
  EXPECT_EQ(cudasim_violation_count(), before);
  EXPECT_TRUE(routes_->Of(kUser)->over);
  EXPECT_FALSE(routes_->Of(kGraph)->over) << "nobody else can tell";
}

TEST_F(PoolRoutesTest, OneThatWasTakenForOverMayAcceptItsStreamAfterAll) {
  const StreamId stream = NewStream();
  ExternalStreams::Add(stream);
  AddOfCapture(kGraph, stream);
  ASSERT_EQ(routes_->Settle().size(), 1u);
  EXPECT_TRUE(routes_->MayRoute());
  Begin(stream);
  PoolRoute* const route = routes_->For(stream);
  ASSERT_NE(route, nullptr);
  EXPECT_TRUE(route->over);
  routes_->Reopen(*route);
  EXPECT_TRUE(routes_->MayCapture());
  EXPECT_TRUE(routes_->Settle().empty());
  End(stream);
  EXPECT_EQ(routes_->Settle().size(), 1u);
}

TEST_F(PoolRoutesTest, ACaptureWithoutARouteIsKnownUntilItIsOver) {
  const StreamId stream = NewStream();
  EXPECT_FALSE(routes_->NoteCapture(stream));
  Begin(stream);
  EXPECT_TRUE(routes_->NoteCapture(stream));
  EXPECT_TRUE(routes_->NoteCapture(stream));
  EXPECT_TRUE(routes_->SomeNotedCapture());
  EXPECT_TRUE(routes_->MayCapture());
  End(stream);
  EXPECT_FALSE(routes_->SomeNotedCapture());
  EXPECT_FALSE(routes_->MayCapture());
}

}  // namespace
}  // namespace stratalloc
