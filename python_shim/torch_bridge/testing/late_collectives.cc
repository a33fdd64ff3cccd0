// SPDX-License-Identifier: Apache-2.0
// A process group of one process whose collectives run late, as NCCL's do: on
// a stream of their own, past torch's operators, after the call has returned.
// torch's own backend for CUDA needs a GPU, and gloo copies by operators.
//
//   torch.ops.late_collectives.group()   a boxed c10d.ProcessGroup
//
// What a process sends it receives itself: the sum over all ranks is the
// tensor, what is gathered is what was given. recv() writes kReceived. Every
// tensor that is written is written by a copy of its own stream.
//
// While it coalesces nothing is launched, and the Works of the operators say
// that they are complete, as events that were never recorded do.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace stratalloc {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kReceived = 0x40;  // in each byte

cudaStream_t Current() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Memory that a late copy still needs is kept until the process ends.
void* Staging(size_t bytes) {
  void* host = nullptr;
  C10_CUDA_CHECK(cudaMallocHost(&host, bytes));
  return host;
}

void Copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

class LateWork final : public c10d::Work {
 public:
  // Null event: complete from the start.
  LateWork(c10d::OpType type, cudaEvent_t done, cudaStream_t stream,
           Tensors results)
      : Work(-1, type),
        done_(done),
        stream_(stream),
        results_(std::move(results)) {}

  bool isCompleted() override {
    return done_ == nullptr || cudaEventQuery(done_) == cudaSuccess;
  }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void synchronize() override {
    if (done_ == nullptr) return;
    C10_CUDA_CHECK(cudaStreamWaitEvent(Current(), done_, 0));
  }
  Tensors result() override { return results_; }
  // What torch's reducer asks for. As NCCL's it is complete at once, and
  // whoever waits for it makes the stream of his wait for ours.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{results_.at(0).device()});
    const c10::cuda::CUDAStreamGuard ours(
        c10::cuda::getStreamFromExternal(stream_, results_[0].get_device()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  const cudaEvent_t done_;
  const cudaStream_t stream_;
  const Tensors results_;
};

class LateBackend final : public c10d::Backend {
 public:
  LateBackend() : Backend(/*rank=*/0, /*size=*/1) {
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  const std::string getBackendName() const override { return "late"; }
  bool supportsCoalescing() const override { return true; }

  void startCoalescing() override { coalesces_ = true; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalesces_ = false;
    const std::vector<std::function<void()>> launches =
        std::exchange(delayed_, {});
    if (launches.empty()) return nullptr;
    return Launch(c10d::OpType::COALESCED, {}, [launches] {
      for (const auto& launch : launches) launch();
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce(
      Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return Later(c10d::OpType::ALLREDUCE, options.asyncOp, tensors,
                 [this, tensors] { InPlace(tensors); });
  }
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return Later(c10d::OpType::BROADCAST, options.asyncOp, tensors,
                 [this, tensors] { InPlace(tensors); });
  }
  // Its own is all there is to reduce: what a call costs without its work.
  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors,
                                        const c10d::ReduceOptions&) override {
    return c10::make_intrusive<LateWork>(c10d::OpType::REDUCE, nullptr, stream_,
                                         tensors);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      Tensor& output, Tensor& input,
      const c10d::AllgatherOptions& options) override {
    return Later(c10d::OpType::_ALLGATHER_BASE, options.asyncOp, {output},
                 [=, this] { OutOfPlace({output}, {input}); });
  }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return Later(c10d::OpType::COALESCED, options.asyncOp, outputs,
                 [=, this] { OutOfPlace(outputs, inputs); });
  }
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    const Tensors first = outputs.at(0);
    return Later(c10d::OpType::ALLGATHER, options.asyncOp, first,
                 [=, this] { OutOfPlace(first, inputs); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      Tensor& output, Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    return Later(c10d::OpType::_REDUCE_SCATTER_BASE, options.asyncOp, {output},
                 [=, this] { OutOfPlace({output}, {input}); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>&,
      std::vector<int64_t>&, const c10d::AllToAllOptions& options) override {
    return Later(c10d::OpType::ALLTOALL_BASE, options.asyncOp, {output},
                 [=, this] { OutOfPlace({output}, {input}); });
  }
  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int, int) override {
    return Later(c10d::OpType::SEND, true, tensors, [=, this] {
      for (const Tensor& tensor : tensors) {
        Copy(Staging(tensor.nbytes()), tensor.const_data_ptr(), tensor.nbytes(),
             stream_);
      }
    });
  }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int, int) override {
    return Later(c10d::OpType::RECV, true, tensors, [=, this] {
      for (const Tensor& tensor : tensors) {
        void* const host = Staging(tensor.nbytes());
        std::memset(host, kReceived, tensor.nbytes());
        Copy(tensor.mutable_data_ptr(), host, tensor.nbytes(), stream_);
      }
    });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    return c10::make_intrusive<LateWork>(c10d::OpType::BARRIER, nullptr,
                                         stream_, Tensors{});
  }

 private:
  void InPlace(const Tensors& tensors) {
    for (const Tensor& tensor : tensors) {
      void* const host = Staging(tensor.nbytes());
      Copy(host, tensor.const_data_ptr(), tensor.nbytes(), stream_);
      Copy(tensor.mutable_data_ptr(), host, tensor.nbytes(), stream_);
    }
  }
  void OutOfPlace(const Tensors& outputs, const Tensors& inputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      Copy(outputs[i].mutable_data_ptr(), inputs[i].const_data_ptr(),
           inputs[i].nbytes(), stream_);
    }
  }

  c10::intrusive_ptr<c10d::Work> Later(c10d::OpType type, bool async,
                                       Tensors results,
                                       std::function<void()> launch) {
    if (coalesces_) {
      delayed_.push_back(std::move(launch));
      return c10::make_intrusive<LateWork>(type, nullptr, stream_,
                                           std::move(results));
    }
    auto work = Launch(type, std::move(results), launch);
    if (async) return work;
    work->synchronize();
    return nullptr;
  }

  c10::intrusive_ptr<c10d::Work> Launch(c10d::OpType type, Tensors results,
                                        const std::function<void()>& launch) {
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream_, Record(Current()), 0));
    launch();
    return c10::make_intrusive<LateWork>(type, Record(stream_), stream_,
                                         std::move(results));
  }

  static cudaEvent_t Record(cudaStream_t stream) {
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    C10_CUDA_CHECK(cudaEventRecord(event, stream));
    return event;
  }

  cudaStream_t stream_ = nullptr;
  bool coalesces_ = false;
  std::vector<std::function<void()>> delayed_;
};

c10::intrusive_ptr<c10d::ProcessGroup> Group() {
  using c10d::ProcessGroup;
  auto group = c10::make_intrusive<ProcessGroup>(/*rank=*/0, /*size=*/1);
  group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<LateBackend>());
  group->setDefaultBackend(ProcessGroup::BackendType::CUSTOM);
  group->setGroupName("late");
  return group;
}

TORCH_LIBRARY(late_collectives, library) {
  library.def("group() -> __torch__.torch.classes.c10d.ProcessGroup", &Group);
}

}  // namespace
}  // namespace stratalloc
