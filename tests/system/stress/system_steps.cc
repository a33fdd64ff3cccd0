// SPDX-License-Identifier: Apache-2.0
// Worker: steps that concern the process and the whole device. A graph is
// captured and replayed, a child is forked, and the disk answers late.
//
// A graph is captured on a stream of this worker's own, because all that other
// threads enqueue on a capturing stream would be part of the graph.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>

#include "tests/system/stress/worker.h"

namespace stratalloc {
namespace {

// Operands of a captured operator, and chunks that the disk keeps waiting.
constexpr std::size_t kMostCaptured = 3;
constexpr int kMostLate = 4;

CUstream ToDriver(StreamId stream) {
  return reinterpret_cast<CUstream>(Raw(stream));
}

bool IsCapturing(StreamId stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(ToDriver(stream), &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

void Worker::StepSystem() {
  const std::uint64_t dice = Below(10);
  if (dice < 6) return StepCapture();
  if (dice < 7) return StepFork();
  if (!world_.disk) return;
  ++tally_.late;
  world_.rig->disk_faults().AnswerLate(1 + static_cast<int>(Below(kMostLate)));
}

// The child of a fork uses no device: operators pass, and nothing moves.
void Worker::StepFork() {
  if (blocks_.empty()) return;
  ++tally_.forks;
  const Shadow& block = *blocks_[Below(blocks_.size())];
  const Access access{block.address, block.bytes, true};
  const pid_t child = fork();
  if (child == 0) {
    engine().AbandonAfterFork();
    int wrong = 0;
    if (engine().EnterOperator(block.home, "forked", {&access, 1})) {
      engine().LeaveOperator();
    } else {
      wrong |= 1;
    }
    if (engine().Evict(device(), {})) wrong |= 2;
    if (engine().Restore(device(), {})) wrong |= 4;
    _exit(wrong);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
      WEXITSTATUS(status) != 0) {
    world_.Complain("the child of a fork ended with " + std::to_string(status));
  }
}

// As torch does it: the pool's route, the capture, and both ends. What its
// operator reads stays until the pool is released, however much is evicted; of
// that the route names one block, as torch does a generator's seed, or none.
void Worker::StepCapture() {
  if (blocks_.empty()) return;
  std::vector<Shadow*> reads;
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < kMostCaptured; ++i) {
    Shadow* const block = blocks_[Below(blocks_.size())].get();
    if (std::find(reads.begin(), reads.end(), block) != reads.end()) continue;
    reads.push_back(block);
    accesses.push_back({block->address, block->bytes, false});
  }
  // A capture waits for no event from outside.
  for (const Shadow* block : reads) {
    for (StreamId used : block->used) Order(place_, used, captured_);
  }
  UseDevice(place_);
  cudaStreamSynchronize(ToDriver(captured_));
  const PoolId pool{1, ++world_.pools};
  const Status routed = engine().BeginAllocateToPool(
      device(), pool,
      [this](StreamId s) { return s == captured_ && IsCapturing(s); },
      captured_, std::span(accesses).first(Below(2)));
  // It restores what the graph will read.
  if (!routed) return JudgeRestore(tl::unexpected(routed.error()));
  ++tally_.captures;
  Capture(pool, reads, accesses);
  Expect(device().ReleasePool(pool), "the last use of a graph's pool");
  if (Status status = device().EmptyPool(pool); !status) {
    Judge("emptying a graph's pool", status.error());
  }
}

void Worker::Capture(PoolId pool, const std::vector<Shadow*>& reads,
                     const std::vector<Access>& accesses) {
  cudaStreamBeginCapture(ToDriver(captured_), cudaStreamCaptureModeThreadLocal);
  const Status entered =
      engine().EnterOperator(captured_, "captured", accesses);
  if (entered) {
    NoteReads(reads, accesses);
    LeaveOperator();
    if (Result<Bytes> moved = engine().Evict(device(), {}); !moved) {
      Judge("evict in a capture", moved.error());
    } else if (*moved != 0) {
      world_.Complain("pages left while a graph was captured");
    }
  } else {
    NoteRefusal("a captured operator", here(), entered.error(), 0);
  }
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(ToDriver(captured_), &graph) != cudaSuccess) {
    world_.Complain("a capture was spoilt");
  }
  Expect(device().EndAllocateToPool(pool).map([](bool) {}),
         "the end of a capture's route");
  if (entered && graph != nullptr) Replay(graph, reads);
  if (graph != nullptr) cudaGraphDestroy(graph);
}

void Worker::NoteReads(const std::vector<Shadow*>& reads,
                       const std::vector<Access>& accesses) {
  std::vector<cudasim_access> noted;
  for (const Access& access : accesses) {
    noted.push_back({access.address, access.bytes, 0});
  }
  for (const Shadow* block : reads) {
    if (world_.rig->IsAway(block->address, block->bytes)) {
      world_.Complain("what a graph reads is evicted");
    } else if (!block->Holds()) {
      world_.Complain("bytes changed before a capture");
    }
  }
  cudasim_note_access(ToDriver(captured_), "captured", noted.data(),
                      static_cast<int>(noted.size()));
}

void Worker::Replay(cudaGraph_t graph, const std::vector<Shadow*>& reads) {
  StepEvict();  // of others
  for (const Shadow* block : reads) {
    if (world_.rig->IsAway(block->address, block->bytes)) {
      world_.Complain("what a graph reads was evicted before its replay");
      return;
    }
    if (!block->Holds()) world_.Complain("bytes changed before a replay");
  }
  cudaGraphExec_t exec = nullptr;
  if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) {
    world_.Complain("a graph is not instantiated");
    return;
  }
  cudaGraphLaunch(exec, ToDriver(captured_));
  cudaStreamSynchronize(ToDriver(captured_));
  cudaGraphExecDestroy(exec);
}

}  // namespace stratalloc
