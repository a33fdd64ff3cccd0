// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/copy_kernel.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zero_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/alias.h"
#include "tests/simulator/cudasim/operator_bridge/dispatch_keys.h"
#include "tests/simulator/cudasim/operator_bridge/late_operators.h"
#include "tests/simulator/cudasim/operator_bridge/recorded_operator.h"
#include "tests/simulator/cudasim/operator_bridge/shape_alias.h"

namespace cudasim::bridge {
namespace {

bool SameBytesInSameOrder(const at::Tensor& self, const at::Tensor& src) {
  return self.scalar_type() == src.scalar_type() &&
         self.sizes() == src.sizes() && self.strides() == src.strides() &&
         self.is_non_overlapping_and_dense() &&
         self.is_conj() == src.is_conj() && self.is_neg() == src.is_neg() &&
         !src._is_zerotensor();
}

// Contiguous tensors may differ in the strides of dimensions of size 1.
bool BothContiguous(const at::Tensor& self, const at::Tensor& src) {
  return self.scalar_type() == src.scalar_type() &&
         self.sizes() == src.sizes() && self.is_contiguous() &&
         src.is_contiguous() && self.is_conj() == src.is_conj() &&
         self.is_neg() == src.is_neg() && !src._is_zerotensor();
}

void SeeDeviceSide(const at::Tensor& tensor) {
  if (tensor.is_cuda()) {
    SeeStorage(tensor.storage().data(), tensor.storage().nbytes());
  }
}

// Between the host and one device.
void CopyHost(const at::Tensor& self, const at::Tensor& src,
              bool non_blocking) {
  const bool to_device = self.is_cuda();
  const c10::Device device = (to_device ? self : src).device();
  c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  void* dst = self.mutable_data_ptr();
  const void* from = src.const_data_ptr();
  C10_CUDA_CHECK(cudaMemcpyAsync(
      dst, from, self.nbytes(),
      to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
  if (!non_blocking) {
    C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    return;
  }
  // Keeps pinned memory from being handed out again before the copy is done.
  const at::Tensor& host = to_device ? src : self;
  at::getHostAllocator(at::kCUDA)->record_event(
      const_cast<void*>(host.const_data_ptr()),
      host.storage().data_ptr().get_context(), stream.unwrap());
}

// An event for the length of one copy between devices.
class CopyEvent {
 public:
  CopyEvent() {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;
  ~CopyEvent() { C10_CUDA_CHECK_WARN(cudaEventDestroy(event_)); }

  // `later` waits for what `earlier` holds now.
  void Order(const c10::cuda::CUDAStream& earlier,
             const c10::cuda::CUDAStream& later) {
    {
      c10::cuda::CUDAGuard guard(earlier.device());
      C10_CUDA_CHECK(cudaEventRecord(event_, earlier));
    }
    c10::cuda::CUDAGuard guard(later.device());
    C10_CUDA_CHECK(cudaStreamWaitEvent(later, event_, 0));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Same bytes, device to device. Across devices the copy runs on the source's
// stream, after what the destination's stream holds and before what it gets.
void CopyDevice(const at::Tensor& self, const at::Tensor& src) {
  const c10::Device from = src.device();
  const c10::Device to = self.device();
  const auto source_stream = c10::cuda::getCurrentCUDAStream(from.index());
  c10::cuda::CUDAGuard guard(from);
  if (from != to) {
    const auto target_stream = c10::cuda::getCurrentCUDAStream(to.index());
    c10::cuda::CUDAGuard target_guard(to);
    CopyEvent before;
    before.Order(target_stream, source_stream);
  }
  C10_CUDA_CHECK(c10::cuda::CUDACachingAllocator::memcpyAsync(
      self.mutable_data_ptr(), to.index(), src.const_data_ptr(), from.index(),
      self.nbytes(), source_stream, /*p2p_enabled=*/false));
  if (from != to) {
    const auto target_stream = c10::cuda::getCurrentCUDAStream(to.index());
    CopyEvent after;
    after.Order(source_stream, target_stream);
  }
}

// Other bytes or another order, device to device: without peer access a kernel
// cannot do it, so that torch converts on the source's device, copies, and puts
// the result in order on the target's.
void CopyThroughTemporaries(at::Tensor& self, const at::Tensor& src,
                            bool non_blocking) {
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::autocast_dispatch_keyset);
  at::Tensor from;
  {
    c10::cuda::CUDAGuard guard(src.device());
    from = src.to(self.scalar_type()).expand_as(self).resolve_conj();
    from = from.resolve_neg().contiguous();
  }
  c10::cuda::CUDAGuard guard(self.device());
  const bool direct = self.is_contiguous() && !self.is_conj() && !self.is_neg();
  at::Tensor to = direct ? self : at::empty_like(from, self.options());
  SeeDeviceSide(to);
  SeeDeviceSide(from);
  CopyDevice(to, from);
  if (!direct) self.copy_(to, non_blocking);
}

// On the virtual clock: a kernel that reads and writes, or, between host and
// device, a conversion on the host and a copy from or to pageable memory.
void ChargeAliasCopy(const at::Tensor& self, const at::Tensor& src,
                     c10::DeviceIndex device) {
  const SimulatedDevice& simulated = SimulatedDevice::Get();
  if (!simulated.keeps_time()) return;
  void* const stream = c10::cuda::getCurrentCUDAStream(device).stream();
  const auto bytes = static_cast<double>(self.nbytes());
  if (self.is_cuda() != src.is_cuda()) {
    simulated.CopyCost(stream, self.is_cuda(), bytes);
  } else {
    simulated.OperatorCost(stream, 0, bytes + static_cast<double>(src.nbytes()),
                           CUDASIM_FP32);
  }
}

// A change of type or layout between the host and the device ends with the
// host waiting.
void WaitForHostSide(const at::Tensor& self, const at::Tensor& src,
                     bool non_blocking, c10::DeviceIndex device) {
  if (non_blocking || self.is_cuda() == src.is_cuda()) return;
  c10::cuda::CUDAGuard guard(c10::Device(c10::kCUDA, device));
  C10_CUDA_CHECK(
      cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(device)));
}

// CopyAliases with numbers off: the same accesses and the same cost. What comes
// to the host is zeros, up to the size at which the simulated device writes
// them.
void CopyNothing(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  constexpr size_t kZeroed = 4096;
  TORCH_CHECK(at::is_expandable_to(src.sizes(), self.sizes()),
              "The expanded size of the tensor (", self.sizes(),
              ") must match the existing size (", src.sizes(), ")");
  AccessLog log("aten::copy_");
  ShapeAliasSet aliases(c10::kMeta, log);
  if (self.is_cuda()) aliases.Alias(self, true);
  if (src.is_cuda()) aliases.Alias(src, false);
  log.Begin(aliases.device());
  if (self.is_cpu() && self.nbytes() <= kZeroed) {
    at::_ops::zero_::redispatch(kCpu, self);
  }
  log.End();
  ChargeAliasCopy(self, src, aliases.device());
  WaitForHostSide(self, src, non_blocking, aliases.device());
}

// Any copy, by the CPU's copy_ on aliases.
void CopyAliases(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  AccessLog log("aten::copy_");
  AliasSet aliases(log);
  at::Tensor to = self.is_cuda() ? aliases.Alias(self, true) : self;
  const at::Tensor from = src.is_cuda() ? aliases.Alias(src, false) : src;
  log.Begin(aliases.device());
  {
    c10::impl::ExcludeDispatchKeyGuard below(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::autocast_dispatch_keyset);
    at::_ops::copy_::redispatch(kCpu, to, from, false);
  }
  log.End();
  ChargeAliasCopy(self, src, aliases.device());
  WaitForHostSide(self, src, non_blocking, aliases.device());
}

}  // namespace

at::Tensor& CopyKernel(at::Tensor& self, const at::Tensor& src,
                       bool non_blocking) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(src.defined(), "src is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.layout() == c10::kStrided && src.layout() == c10::kStrided &&
          (self.is_cuda() || self.is_cpu()) && (src.is_cuda() || src.is_cpu()),
      "the simulated device copies between dense CPU and CUDA tensors only, "
      "not from ",
      src.toString(), " to ", self.toString());
  if (self.is_same(src)) return self;
  BridgeLateOperators();
  CountBridgedCall();
  if (self.numel() == 0 && src.numel() == 0 && self.sizes() == src.sizes()) {
    return self;
  }
  const bool capturing =
      IsCapturing((self.is_cuda() ? self : src).device().index());
  if (!SameBytesInSameOrder(self, src) && !BothContiguous(self, src)) {
    const bool numbers = SimulatedDevice::Get().numbers();
    if (capturing && numbers && self.is_cuda() && src.is_cuda() &&
        self.device() == src.device()) {
      RecordCopy(self, src);
      return self;
    }
    if (self.is_cuda() && src.is_cuda() && self.device() != src.device()) {
      CopyThroughTemporaries(self, src, non_blocking);
      return self;
    }
    // Converted on the host: a device would wait for it.
    if (capturing && self.is_cuda() != src.is_cuda()) {
      C10_CUDA_CHECK(cudaErrorStreamCaptureUnsupported);
    }
    if (numbers) {
      CopyAliases(self, src, non_blocking);
    } else {
      CopyNothing(self, src, non_blocking);
    }
    return self;
  }
  SeeDeviceSide(self);
  SeeDeviceSide(src);
  if (self.is_cuda() && src.is_cuda()) {
    CopyDevice(self, src);
  } else {
    const at::Tensor& host = self.is_cuda() ? src : self;
    TORCH_CHECK(!capturing || !non_blocking || host.is_pinned(),
                "a CUDA graph that is being captured can copy between the "
                "device and pinned host memory only: use pin_memory()");
    CopyHost(self, src, non_blocking);
  }
  if (capturing && SimulatedDevice::Get().numbers()) ShadowCopy(self, src);
  return self;
}

}  // namespace cudasim::bridge
