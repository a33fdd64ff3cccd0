// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/workspaces.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/torch_minor.h"

namespace cudasim::bridge {
namespace {

struct Known {
  std::string_view name;  // without overload
  Workspace kind;
};

constexpr std::array kKnown = {
    Known{"aten::mm", Workspace::kProduct},
    Known{"aten::bmm", Workspace::kProduct},
    Known{"aten::baddbmm", Workspace::kProduct},
    Known{"aten::baddbmm_", Workspace::kProduct},
    Known{"aten::addmv", Workspace::kProduct},
    Known{"aten::addmv_", Workspace::kProduct},
    Known{"aten::dot", Workspace::kProduct},
    Known{"aten::vdot", Workspace::kProduct},
    Known{"aten::addmm", Workspace::kProductAndBias},
    Known{"aten::addmm_", Workspace::kProductAndBias},
    Known{"aten::_addmm_activation", Workspace::kProductAndBias},
    Known{"aten::_scaled_mm", Workspace::kScaledProduct},
    Known{"aten::convolution", Workspace::kConvolution},
    Known{"aten::_convolution", Workspace::kConvolution},
    Known{"aten::cudnn_convolution", Workspace::kConvolution},
    Known{"aten::convolution_backward", Workspace::kConvolution},
    Known{"aten::sort", Workspace::kSort},
    Known{"aten::embedding_dense_backward", Workspace::kEmbeddingBackward},
    Known{"aten::_index_put_impl_", Workspace::kIndexPut},
    Known{"aten::_scaled_dot_product_flash_attention_backward",
          Workspace::kFlashBackward},
};

// Like PyTorch's handles of cuBLAS: one per thread and device, reused when the
// thread has ended. Only its address matters.
class Handles {
 public:
  void* Take(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<void*>& free = free_[device];
    if (free.empty()) {
      // As torch says it; it does not change the mode of captures for this.
      TORCH_CHECK(SimulatedDevice::Get().LoadCublas(device),
                  "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
                  "`cublasCreate(handle)`");
      return new char;
    }
    void* const handle = free.back();
    free.pop_back();
    return handle;
  }
  void Return(c10::DeviceIndex device, void* handle) {
    std::lock_guard<std::mutex> lock(mu_);
    free_[device].push_back(handle);
  }
  static Handles& Get() {
    static Handles& handles = *new Handles;
    return handles;
  }

 private:
  std::mutex mu_;
  std::map<c10::DeviceIndex, std::vector<void*>> free_;
};

class HandlesOfThread {
 public:
  HandlesOfThread() = default;
  HandlesOfThread(const HandlesOfThread&) = delete;
  HandlesOfThread& operator=(const HandlesOfThread&) = delete;
  ~HandlesOfThread() {
    for (const auto& [device, handle] : handles_) {
      Handles::Get().Return(device, handle);
    }
  }
  void* On(c10::DeviceIndex device) {
    void*& handle = handles_[device];
    if (handle == nullptr) handle = Handles::Get().Take(device);
    return handle;
  }

 private:
  std::map<c10::DeviceIndex, void*> handles_;
};

HandlesOfThread& ThreadsHandles() {
  thread_local HandlesOfThread handles;
  return handles;
}

bool IsSet(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr && *text != '\0';
}

bool IsUnified() {
  const char* const text = std::getenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE");
  return text != nullptr && std::string_view(text) == "1";
}

// The program's wish, else the card's, else PyTorch's own size.
size_t SizeOf(c10::DeviceIndex device, const char* variable, const char* figure,
              size_t (*torchs)()) {
  const double of_card = SimulatedDevice::Get().CardFigure(device, figure);
  return !IsSet(variable) && of_card > 0 ? static_cast<size_t>(of_card)
                                         : torchs();
}

// REQUIRES: `device` is current.
void Keep(at::cuda::WorkspaceMapWithMutex& table, c10::DeviceIndex device,
          size_t bytes) {
  void* const stream = c10::cuda::getCurrentCUDAStream(device).stream();
  const auto key = std::make_tuple(ThreadsHandles().On(device), stream);
  {
    std::shared_lock<std::shared_mutex> lock(table.mutex);
    if (table.map.find(key) != table.map.end()) return;
  }
  at::DataPtr memory = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  std::unique_lock<std::shared_mutex> lock(table.mutex);
  PutWorkspace(table.map, key, std::move(memory), bytes);
}

void KeepForProducts(c10::DeviceIndex device, bool with_bias) {
  const bool unified = IsUnified();
  const size_t of_lt =
      SizeOf(device, "CUBLASLT_WORKSPACE_SIZE", "cublaslt_workspace_bytes",
             &at::cuda::getCUDABlasLtWorkspaceSize);
  size_t bytes = SizeOf(device, "CUBLAS_WORKSPACE_CONFIG",
                        "cublas_workspace_bytes", &CublasWorkspaceSize);
  if (unified) bytes = std::max(bytes, of_lt);
  Keep(at::cuda::cublas_handle_stream_to_workspace(), device, bytes);
  if (with_bias && !unified) {
    Keep(at::cuda::cublaslt_handle_stream_to_workspace(), device, of_lt);
  }
}

const at::Tensor* TensorAt(const torch::jit::Stack& stack, size_t index) {
  return stack[index].isTensor() && stack[index].toTensor().defined()
             ? &stack[index].toTensor()
             : nullptr;
}

size_t BytesOf(const at::Tensor* tensor) {
  return tensor == nullptr ? 0 : tensor->nbytes();
}

size_t RoundUp(size_t number, size_t unit) {
  return (number + unit - 1) / unit * unit;
}

// Keys and positions are sorted from one buffer into another.
size_t SortBytes(const at::Tensor& keys) {
  constexpr int64_t kInOneBlock = 4096;
  int64_t row = keys.dim() == 0 ? 1 : keys.size(-1);
  for (int64_t d = 0; d < keys.dim(); ++d) row = std::max(row, keys.size(d));
  if (row <= kInOneBlock) return 0;
  return keys.numel() * (keys.itemsize() + 2 * sizeof(int64_t));
}

// Indices and their positions, both sorted out of place.
size_t IndexSortBytes(int64_t indices) { return 4 * sizeof(int64_t) * indices; }

// The sum of the query's gradient in float, in whole tiles, and a float per
// row. `query` is (batch, heads, length, width).
size_t FlashBackwardBytes(const at::Tensor& query) {
  if (query.dim() != 4) return 0;
  const size_t rows = RoundUp(query.size(2), 128);
  const size_t width = RoundUp(query.size(3), query.size(3) > 128 ? 64 : 32);
  return query.size(0) * query.size(1) * rows * (width + 1) * sizeof(float);
}

}  // namespace

WorkspacePlan::WorkspacePlan(const c10::OperatorHandle& op) {
  for (const Known& known : kKnown) {
    if (known.name == op.operator_name().name) kind_ = known.kind;
  }
}

WorkspacePlan::Need WorkspacePlan::NeedSlow(const torch::jit::Stack& stack,
                                            size_t first) const {
  Need need;
  const at::Tensor* const tensor = TensorAt(stack, first);
  const at::Tensor* const second = TensorAt(stack, first + 1);
  if (tensor == nullptr) return need;
  need.kind = kind_;
  switch (kind_) {
    case Workspace::kNone:
    case Workspace::kProduct:
    case Workspace::kScaledProduct:
      break;
    case Workspace::kProductAndBias:
      // Of a matrix that is added, cuBLAS takes care.
      if (tensor->dim() != 1) need.kind = Workspace::kProduct;
      break;
    case Workspace::kConvolution:
      need.bytes = BytesOf(tensor) + BytesOf(second) +
                   BytesOf(TensorAt(stack, first + 2));
      break;
    case Workspace::kSort:
      need.bytes = SortBytes(*tensor);
      break;
    case Workspace::kEmbeddingBackward:
      // Up to 3072 indices one kernel does it without sorting.
      if (second != nullptr && second->numel() > 3072) {
        need.bytes = IndexSortBytes(second->numel());
      }
      break;
    case Workspace::kIndexPut:
      // (self, indices, values, accumulate, unsafe)
      if (stack[first + 3].toBool()) {
        for (const c10::IValue& index : stack[first + 1].toListRef()) {
          if (!index.isTensor()) continue;
          need.bytes =
              std::max(need.bytes, IndexSortBytes(index.toTensor().numel()));
        }
      }
      break;
    case Workspace::kFlashBackward:
      if (second != nullptr) need.bytes = FlashBackwardBytes(*second);
      break;
  }
  return need;
}

void MakeHandle(const WorkspacePlan::Need& need, c10::DeviceIndex device) {
  const bool product = need.kind == Workspace::kProduct ||
                       need.kind == Workspace::kProductAndBias ||
                       need.kind == Workspace::kScaledProduct;
  if (product && SimulatedDevice::Get().IsModelled(device)) {
    ThreadsHandles().On(device);
  }
}

void TakeWorkspaceSlow(const WorkspacePlan::Need& need,
                       c10::DeviceIndex device) {
  const SimulatedDevice& simulated = SimulatedDevice::Get();
  if (!simulated.IsModelled(device)) return;
  c10::cuda::CUDAGuard guard(device);
  size_t bytes = need.bytes;
  switch (need.kind) {
    case Workspace::kProduct:
    case Workspace::kProductAndBias:
    case Workspace::kScaledProduct:
      return KeepForProducts(device, need.kind != Workspace::kProduct);
    case Workspace::kConvolution: {
      const double most = simulated.CardFigure(device, "cudnn_workspace_bytes");
      bytes = std::min(bytes, static_cast<size_t>(std::max(most, 0.0)));
      break;
    }
    default:
      break;
  }
  // On the device the stream orders its reuse; here nothing is written at all.
  if (bytes != 0) c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
}

}  // namespace cudasim::bridge
