// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/cards.h"

#include <utility>

namespace cudasim {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Time of the calling thread, nanoseconds: what such calls take on a current
// driver and a fast core. They differ little between cards.
const std::map<std::string, double>& TypicalCalls() {
  static const auto& calls = *new std::map<std::string, double>{
      {"cuMemAddressFree", 3000},
      {"cuMemAddressReserve", 3000},
      {"cuMemCreate", 28000},
      {"cuMemMap", 2000},
      {"cuMemRelease", 23000},
      {"cuMemSetAccess", 2000},
      {"cuMemUnmap", 2000},
      {"cuMemcpyAsync", 3000},
      {"cuMemcpyDtoDAsync", 2500},
      {"cuMemcpyDtoHAsync", 3000},
      {"cuMemcpyHtoDAsync", 3000},
      {"cuMemsetD8Async", 2500},
      {"cuEventRecord", 900},
      {"cuEventQuery", 400},
      {"cuStreamWaitEvent", 700},
      {"cuLaunchKernel", 2500},
      {"cudaEventCreateWithFlags", 500},
      {"cudaEventDestroy", 400},
      {"cudaEventQuery", 400},
      {"cudaEventRecord", 900},
      {"cudaEventRecordWithFlags", 900},
      {"cudaEventSynchronize", 1500},
      {"cudaDeviceSynchronize", 2000},
      {"cudaFree", 150000},
      {"cudaFreeHost", 200000},
      {"cudaGetDevice", 25},
      {"cudaGraphLaunch", 8000},
      {"cudaHostAlloc", 300000},
      {"cudaHostRegister", 50000},
      {"cudaHostUnregister", 50000},
      {"cudaLaunchKernel", 2500},
      {"cudaLaunchKernelExC", 2500},
      {"cudaMalloc", 200000},
      {"cudaMemcpy", 4000},
      {"cudaMemcpyAsync", 3000},
      {"cudaMemsetAsync", 2500},
      {"cudaPointerGetAttributes", 200},
      {"cudaSetDevice", 50},
      {"cudaStreamIsCapturing", 60},
      {"cudaStreamQuery", 500},
      {"cudaStreamSynchronize", 1500},
      {"cudaStreamWaitEvent", 700},
  };
  return calls;
}

Card Common(const char* key, const char* model) {
  Card card;
  card.key = key;
  card.name = std::string("cudasim ") + model + " (simulated device)";
  card.modelled = true;
  card.compute_efficiency = 0.7;
  card.memory_efficiency = 0.85;
  card.kernel_ns = 2000;
  card.copy_ns = 1500;
  card.memset_ns = 1500;
  card.operator_ns = 4000;
  card.call_ns = 200;
  card.calls_ns = TypicalCalls();
  // With the calls' own: 38 us for a mapping that is granted to one device, 34
  // for one that is taken away, 29 for a handle of 2 MiB (public traces).
  card.grant_ns = 36000;
  card.unmap_ns = 32000;
  card.create_ns_per_gib = 512000;
  card.pin_ns_per_gib = 200e6;
  card.host_checksum_gb_per_s = 10;
  card.choose_ns_per_candidate = 100;
  // PyTorch: two blocks of 4 MiB and eight of 16 KiB, and 1 MiB for cuBLASLt.
  card.cublas_workspace_bytes = 8 * kMiB + 128 * 1024;
  card.cublas_library_bytes = 64 * kMiB;
  card.cublaslt_workspace_bytes = 1 * kMiB;
  return card;
}

Card H200() {
  Card card = Common("h200", "H200");
  card.compute_major = 9;
  card.compute_minor = 0;
  card.multiprocessors = 132;
  card.l2_bytes = 60 << 20;
  card.persisting_l2_bytes = 37 << 20;
  card.bus_width = 6144;
  card.clock_khz = 1980000;
  card.memory_clock_khz = 3201000;
  card.ecc = 1;
  card.says_rdma_handles = 1;
  card.memory_bytes = 143156 * kMiB;
  card.context_bytes = 520 * kMiB;
  card.cublas_workspace_bytes = 32 * kMiB;  // PyTorch's choice for 9.0
  card.cudnn_workspace_bytes = 1024 * kMiB;
  card.hbm_gb_per_s = 4800;
  card.pcie_up_gb_per_s = 55;
  card.pcie_down_gb_per_s = 55;
  card.pcie_both_gb_per_s = 100;
  card.pageable_up_gb_per_s = 9;
  card.pageable_down_gb_per_s = 9;
  card.peer_gb_per_s = 390;
  card.fp64_tflops = 67;
  card.fp32_tflops = 67;
  card.tf32_tflops = 494.7;
  card.fp16_tflops = 989.5;
  card.bf16_tflops = 989.5;
  card.fp8_tflops = 1979;
  card.int8_tflops = 1979;
  return card;
}

Card A100() {
  Card card = Common("a100", "A100");
  card.compute_major = 8;
  card.compute_minor = 0;
  card.multiprocessors = 108;
  card.shared_per_block_optin = 163 << 10;
  card.shared_per_multiprocessor = 164 << 10;
  card.l2_bytes = 40 << 20;
  card.persisting_l2_bytes = 25 << 20;
  card.bus_width = 5120;
  card.clock_khz = 1410000;
  card.memory_clock_khz = 1593000;
  card.ecc = 1;
  card.says_rdma_handles = 1;
  card.memory_bytes = 81152 * kMiB;
  card.context_bytes = 420 * kMiB;
  card.cudnn_workspace_bytes = 1024 * kMiB;
  card.hbm_gb_per_s = 2039;
  card.pcie_up_gb_per_s = 25;
  card.pcie_down_gb_per_s = 26;
  card.pcie_both_gb_per_s = 36;
  card.pageable_up_gb_per_s = 7;
  card.pageable_down_gb_per_s = 7;
  card.peer_gb_per_s = 270;
  card.fp64_tflops = 19.5;
  card.fp32_tflops = 19.5;
  card.tf32_tflops = 156;
  card.fp16_tflops = 312;
  card.bf16_tflops = 312;
  card.fp8_tflops = 312;
  card.int8_tflops = 624;
  return card;
}

Card Rtx4090() {
  Card card = Common("rtx4090", "RTX 4090");
  card.compute_major = 8;
  card.compute_minor = 9;
  card.multiprocessors = 128;
  card.threads_per_multiprocessor = 1536;
  card.blocks_per_multiprocessor = 24;
  card.shared_per_block_optin = 99 << 10;
  card.shared_per_multiprocessor = 100 << 10;
  card.l2_bytes = 72 << 20;
  card.persisting_l2_bytes = 45 << 20;
  card.bus_width = 384;
  card.clock_khz = 2520000;
  card.memory_clock_khz = 10501000;
  card.copy_engines = 2;
  card.memory_bytes = 24216 * kMiB;
  card.context_bytes = 370 * kMiB;
  card.cudnn_workspace_bytes = 1024 * kMiB;
  card.hbm_gb_per_s = 1008;
  card.pcie_up_gb_per_s = 25;
  card.pcie_down_gb_per_s = 26;
  card.pcie_both_gb_per_s = 38;
  card.pageable_up_gb_per_s = 10;
  card.pageable_down_gb_per_s = 10;
  card.peer_gb_per_s = 20;  // through the host
  card.fp64_tflops = 1.29;
  card.fp32_tflops = 82.6;
  card.tf32_tflops = 82.6;
  card.fp16_tflops = 165.2;
  card.bf16_tflops = 165.2;
  card.fp8_tflops = 330.3;
  card.int8_tflops = 660.6;
  return card;
}

// An RTX 4090 as programs under WSL2 see it. That kernels cannot use pinned
// memory there is NVIDIA's documentation; how handles are refused is from
// public traces.
Card Wsl2() {
  Card card = Rtx4090();
  card.key = "wsl2";
  card.name = "cudasim RTX 4090 under WSL2 (simulated device)";
  card.kernels_reach_host = 0;
  card.exports_handles = 0;
  card.rdma_handles = 0;
  card.says_rdma_handles = 1;
  return card;
}

Card T4() {
  Card card = Common("t4", "T4");
  card.compute_major = 7;
  card.compute_minor = 5;
  card.multiprocessors = 40;
  card.threads_per_multiprocessor = 1024;
  card.blocks_per_multiprocessor = 16;
  card.shared_per_block_optin = 64 << 10;
  card.shared_per_multiprocessor = 64 << 10;
  card.l2_bytes = 4 << 20;
  card.bus_width = 256;
  card.clock_khz = 1590000;
  card.memory_clock_khz = 5001000;
  card.ecc = 1;
  card.says_rdma_handles = 1;
  card.memory_bytes = 14930 * kMiB;
  card.context_bytes = 110 * kMiB;
  card.cudnn_workspace_bytes = 1024 * kMiB;
  card.hbm_gb_per_s = 320;
  card.pcie_up_gb_per_s = 12;
  card.pcie_down_gb_per_s = 13;
  card.pageable_up_gb_per_s = 6;
  card.pageable_down_gb_per_s = 6;
  card.peer_gb_per_s = 10;
  card.fp64_tflops = 0.254;
  card.fp32_tflops = 8.1;
  card.tf32_tflops = 8.1;
  card.fp16_tflops = 65;
  card.bf16_tflops = 8.1;
  card.fp8_tflops = 65;
  card.int8_tflops = 130;
  return card;
}

const std::vector<Card>& Presets() {
  static const auto& presets =
      *new std::vector<Card>{H200(), A100(), Rtx4090(), T4(), Wsl2()};
  return presets;
}

}  // namespace

const Card& Card::Generic() {
  static const auto& generic = *new Card;
  return generic;
}

const Card* Card::Preset(const std::string& key) {
  if (key == "generic") return &Generic();
  for (const Card& card : Presets()) {
    if (card.key == key) return &card;
  }
  return nullptr;
}

std::string Card::PresetNames() {
  std::string names = "generic";
  for (const Card& card : Presets()) names += ", " + card.key;
  return names;
}

const std::vector<std::pair<const char*, Figure>>& CardFigures() {
#define CUDASIM_FIGURE(name) \
  { #name, &Card::name }
  static const auto& figures = *new std::vector<std::pair<const char*, Figure>>{
      CUDASIM_FIGURE(compute_major),
      CUDASIM_FIGURE(compute_minor),
      CUDASIM_FIGURE(multiprocessors),
      CUDASIM_FIGURE(threads_per_multiprocessor),
      CUDASIM_FIGURE(blocks_per_multiprocessor),
      CUDASIM_FIGURE(threads_per_block),
      CUDASIM_FIGURE(shared_per_block),
      CUDASIM_FIGURE(shared_per_block_optin),
      CUDASIM_FIGURE(shared_per_multiprocessor),
      CUDASIM_FIGURE(l2_bytes),
      CUDASIM_FIGURE(persisting_l2_bytes),
      CUDASIM_FIGURE(bus_width),
      CUDASIM_FIGURE(clock_khz),
      CUDASIM_FIGURE(memory_clock_khz),
      CUDASIM_FIGURE(copy_engines),
      CUDASIM_FIGURE(ecc),
      CUDASIM_FIGURE(texture_alignment),
      CUDASIM_FIGURE(kernels_reach_host),
      CUDASIM_FIGURE(exports_handles),
      CUDASIM_FIGURE(rdma_handles),
      CUDASIM_FIGURE(says_rdma_handles),
      CUDASIM_FIGURE(memory_bytes),
      CUDASIM_FIGURE(context_bytes),
      CUDASIM_FIGURE(cublas_library_bytes),
      CUDASIM_FIGURE(cublas_workspace_bytes),
      CUDASIM_FIGURE(cublaslt_workspace_bytes),
      CUDASIM_FIGURE(cudnn_workspace_bytes),
      CUDASIM_FIGURE(hbm_gb_per_s),
      CUDASIM_FIGURE(pcie_up_gb_per_s),
      CUDASIM_FIGURE(pcie_down_gb_per_s),
      CUDASIM_FIGURE(pcie_both_gb_per_s),
      CUDASIM_FIGURE(pageable_up_gb_per_s),
      CUDASIM_FIGURE(pageable_down_gb_per_s),
      CUDASIM_FIGURE(peer_gb_per_s),
      CUDASIM_FIGURE(fp64_tflops),
      CUDASIM_FIGURE(fp32_tflops),
      CUDASIM_FIGURE(tf32_tflops),
      CUDASIM_FIGURE(fp16_tflops),
      CUDASIM_FIGURE(bf16_tflops),
      CUDASIM_FIGURE(fp8_tflops),
      CUDASIM_FIGURE(int8_tflops),
      CUDASIM_FIGURE(compute_efficiency),
      CUDASIM_FIGURE(memory_efficiency),
      CUDASIM_FIGURE(kernel_ns),
      CUDASIM_FIGURE(copy_ns),
      CUDASIM_FIGURE(memset_ns),
      CUDASIM_FIGURE(operator_ns),
      CUDASIM_FIGURE(call_ns),
      CUDASIM_FIGURE(grant_ns),
      CUDASIM_FIGURE(unmap_ns),
      CUDASIM_FIGURE(create_ns_per_gib),
      CUDASIM_FIGURE(pin_ns_per_gib),
      CUDASIM_FIGURE(host_checksum_gb_per_s),
      CUDASIM_FIGURE(choose_ns_per_candidate),
      CUDASIM_FIGURE(burn_call_ns),
  };
#undef CUDASIM_FIGURE
  return figures;
}

double FigureOf(const Card& card, const std::string& name) {
  for (const auto& [figure_name, figure] : CardFigures()) {
    if (name != figure_name) continue;
    return std::visit(
        [&](auto member) { return static_cast<double>(card.*member); }, figure);
  }
  return -1;
}

}  // namespace cudasim
