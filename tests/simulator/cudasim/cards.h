// SPDX-License-Identifier: Apache-2.0
//
// cards.h: what a simulated device is: the properties it reports, the memory
// it has, what libraries take from that memory beside the allocator, and how
// fast it is. A card is chosen per device (CUDASIM_CARD=h200,t4, or
// cudasim_set_card) and any of its figures can be overridden by a profile
// (profile.h). Without either the device is the generic one: compute capability
// 9.0, no workspaces, and work takes no virtual time.
//
// The figures of a preset are those of the vendor's data sheet (peaks,
// bandwidths, sizes), of PyTorch 2.11 (workspaces by compute capability), or
// typical of published measurements (latencies, costs of calls, efficiencies).
// None was measured here; a measured profile replaces them. The rate of both
// directions of the bus together is from public reports of nvbandwidth for
// a100 (issues 11 and 53 of that project: copies to the host keep 24 GB/s and
// leave 11 to 13 for copies to the device) and taken to be alike for rtx4090;
// for h200 it is a guess, and for t4 no report was found.
//
// Thread-safety: plain values. The cards of the devices are held by the
// simulator, under its lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CARDS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CARDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace cudasim {

struct Card {
  std::string key = "generic";  // the preset's name
  std::string name = "cudasim (simulated device)";
  // A preset or a profile is in force: time and workspaces are modelled.
  bool modelled = false;

  // Properties.
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessors = 132;
  int threads_per_multiprocessor = 2048;
  int blocks_per_multiprocessor = 32;
  int threads_per_block = 1024;
  int shared_per_block = 48 << 10;
  int shared_per_block_optin = 227 << 10;
  int shared_per_multiprocessor = 228 << 10;
  int l2_bytes = 50 << 20;
  int persisting_l2_bytes = 0;
  int bus_width = 5120;
  int clock_khz = 1980000;
  int memory_clock_khz = 1980000;
  int copy_engines = 3;
  int ecc = 0;
  int texture_alignment = 512;
  // What some platforms (WSL2) cannot, whatever their attributes say.
  int kernels_reach_host = 1;  // kernels may use pinned memory of the host
  int exports_handles = 1;     // cuMemCreate for POSIX file descriptors
  int rdma_handles = 1;        // rights for handles made for GPUDirect RDMA
  // The attribute of the last: handles may be made so.
  int says_rdma_handles = 0;

  // Memory. The capacity is the card's unless CUDASIM_MEMORY says otherwise.
  uint64_t memory_bytes = uint64_t{8} << 30;
  // What the context and the libraries' code take, outside every allocator.
  // Not taken when CUDASIM_MEMORY is set: that is what the program can have.
  uint64_t context_bytes = 0;
  // What cuBLAS's code takes likewise, from its first use on.
  uint64_t cublas_library_bytes = 0;
  // One per handle and stream, allocated through PyTorch's allocator.
  uint64_t cublas_workspace_bytes = 0;
  uint64_t cublaslt_workspace_bytes = 0;
  // The most a convolution asks for.
  uint64_t cudnn_workspace_bytes = 0;

  // Speeds, in 10^9 bytes per second.
  double hbm_gb_per_s = 0;
  double pcie_up_gb_per_s = 0;    // pinned host memory to the device
  double pcie_down_gb_per_s = 0;  // and back
  // The most that both directions have together while both are busy; 0: each
  // has its own rate, whatever the other does.
  double pcie_both_gb_per_s = 0;
  double pageable_up_gb_per_s = 0;
  double pageable_down_gb_per_s = 0;
  double peer_gb_per_s = 0;
  // Peaks, in 10^12 operations per second, dense. On a card without units for
  // a type, the peak of what it uses instead.
  double fp64_tflops = 0;
  double fp32_tflops = 0;
  double tf32_tflops = 0;
  double fp16_tflops = 0;
  double bf16_tflops = 0;
  double fp8_tflops = 0;
  double int8_tflops = 0;
  // The part of a peak that kernels reach.
  double compute_efficiency = 1;
  double memory_efficiency = 1;

  // Time on the device that no byte or operation explains.
  double kernel_ns = 0;
  double copy_ns = 0;
  double memset_ns = 0;
  // Time of the calling thread: per bridged operator (Python, dispatcher), and
  // per CUDA call where `calls_ns` does not name the function.
  double operator_ns = 0;
  double call_ns = 0;
  std::map<std::string, double> calls_ns;
  // Beside that, what grows with what a call does: cuMemSetAccess per mapping
  // and device that is given access; cuMemUnmap per mapping; cuMemCreate on
  // the device per GiB; pinning memory of the host (cudaHostAlloc,
  // cudaHostRegister, cuMemCreate there) per GiB.
  double grant_ns = 0;
  double unmap_ns = 0;
  double create_ns_per_gib = 0;
  double pin_ns_per_gib = 0;
  // 10^9 bytes per second that one thread of the host checksums.
  double host_checksum_gb_per_s = 0;
  // What one candidate costs the thread that chooses victims: to read its state
  // and to sort it in.
  double choose_ns_per_candidate = 0;
  // Nanoseconds of real CPU that each call burns, likewise (CUDASIM_CALL_NS).
  double burn_call_ns = 0;
  std::map<std::string, double> burn_calls_ns;

  // The generic device; a preset, or nullptr for a name that is none.
  static const Card& Generic();
  static const Card* Preset(const std::string& key);
  static std::string PresetNames();  // "h200, a100, ..."
};

// Every figure a profile may override, by its name there.
using Figure = std::variant<int Card::*, uint64_t Card::*, double Card::*>;
const std::vector<std::pair<const char*, Figure>>& CardFigures();
// The figure, or -1 if there is none of that name.
double FigureOf(const Card& card, const std::string& name);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CARDS_H_
