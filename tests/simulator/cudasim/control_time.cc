// SPDX-License-Identifier: Apache-2.0
//
// The control functions of cards, profiles and the virtual clock.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/control_text.h"
#include "tests/simulator/cudasim/profile.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {
namespace {

bool HasDevice(int device) {
  return device >= 0 && device < Simulator::Get().config.devices;
}

double PeakOf(const Card& card, int dtype) {
  switch (dtype) {
    case CUDASIM_FP64:
      return card.fp64_tflops;
    case CUDASIM_TF32:
      return card.tf32_tflops;
    case CUDASIM_FP16:
      return card.fp16_tflops;
    case CUDASIM_BF16:
      return card.bf16_tflops;
    case CUDASIM_FP8:
      return card.fp8_tflops;
    case CUDASIM_INT8:
      return card.int8_tflops;
    default:
      return card.fp32_tflops;
  }
}

void ChargeKernel(void* handle, double flops, double bytes, int dtype,
                  bool of_operator) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0 || !CurrentCard().modelled) return;
  ThreadState& thread = ThisThread();
  thread.costed = true;
  Lock lock(sim.mu);
  Stream* stream =
      sim.streams.Find(reinterpret_cast<uint64_t>(handle), thread.device);
  if (stream == nullptr) return;
  const Card& card = CardOf(stream->device);
  if (of_operator) {
    sim.clock.Spend(static_cast<VirtualNs>(card.operator_ns));
  }
  sim.ChargeKernel(stream, flops, bytes, PeakOf(card, dtype));
}

using Named = std::vector<std::pair<const char*, double>>;

Named Totals() {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  const VirtualTotals& totals = sim.clock.totals();
  return {{"h2d_bytes", totals.h2d_bytes},
          {"d2h_bytes", totals.d2h_bytes},
          {"d2d_bytes", totals.d2d_bytes},
          {"memset_bytes", totals.memset_bytes},
          {"operators", totals.operators},
          {"flops", totals.flops},
          {"kernel_ns", totals.kernel_ns},
          {"copy_ns", totals.copy_ns},
          {"compute_busy_ns", totals.compute_busy_ns},
          {"up_busy_ns", totals.up_busy_ns},
          {"down_busy_ns", totals.down_busy_ns},
          {"peer_busy_ns", totals.peer_busy_ns},
          {"host_wait_ns", sim.clock.host_wait_ns()},
          {"calls_ns", sim.clock.calls_ns()}};
}

}  // namespace
}  // namespace cudasim

using cudasim::CopyText;
using cudasim::HasDevice;
using cudasim::Lock;
using cudasim::Simulator;

#pragma GCC visibility push(default)
extern "C" {

int cudasim_set_card(int device, const char* name) {
  const cudasim::Card* card =
      name == nullptr ? nullptr : cudasim::Card::Preset(name);
  if (!HasDevice(device) || card == nullptr) return -1;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.SetCard(device, *card);
  return 0;
}

int cudasim_card(int device, char* text, int bytes) {
  if (!HasDevice(device)) return -1;
  return CopyText(cudasim::CardOf(device).key, text, bytes);
}

int cudasim_is_modelled(int device) {
  return HasDevice(device) && cudasim::CardOf(device).modelled ? 1 : 0;
}

double cudasim_card_figure(int device, const char* figure) {
  if (!HasDevice(device) || figure == nullptr) return -1;
  return cudasim::FigureOf(cudasim::CardOf(device), figure);
}

int cudasim_profile(int device, char* text, int bytes) {
  if (!HasDevice(device)) return -1;
  return CopyText(cudasim::ProfileText(cudasim::CardOf(device)), text, bytes);
}

int cudasim_apply_profile(int device, const char* json) {
  if (!HasDevice(device) || json == nullptr) return -1;
  cudasim::Card card = cudasim::CardOf(device);
  const std::string problem = cudasim::ApplyProfile(json, &card);
  if (!problem.empty()) {
    std::fprintf(stderr, "cudasim: a profile cannot be used: %s\n",
                 problem.c_str());
    return -1;
  }
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.SetCard(device, card);
  return 0;
}

int cudasim_time_is_kept(void) {
  return Simulator::Get().keeps_time.load(std::memory_order_relaxed) ? 1 : 0;
}

int64_t cudasim_virtual_now_ns(void) { return Simulator::Get().clock.Now(); }

int64_t cudasim_stream_virtual_ns(void* handle) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0) return 0;
  Lock lock(sim.mu);
  cudasim::Stream* stream = sim.streams.Find(reinterpret_cast<uint64_t>(handle),
                                             cudasim::ThisThread().device);
  return stream == nullptr ? 0 : sim.clock.EndOf(stream);
}

int64_t cudasim_device_virtual_ns(int device) {
  if (!HasDevice(device)) return 0;
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  return sim.clock.EndOfDevice(device);
}

double cudasim_virtual_total(const char* what) {
  const std::string wanted = what == nullptr ? "" : what;
  for (const auto& [name, value] : cudasim::Totals()) {
    if (wanted == name) return value;
  }
  return -1;
}

int cudasim_virtual_report(char* text, int bytes) {
  int64_t end = 0;
  for (int device = 0; device < Simulator::Get().config.devices; ++device) {
    end = std::max(end, cudasim_device_virtual_ns(device));
  }
  std::string report =
      "{\"now_ns\": " + std::to_string(cudasim_virtual_now_ns()) +
      ", \"end_ns\": " + std::to_string(end);
  for (const auto& [name, value] : cudasim::Totals()) {
    char number[40];
    std::snprintf(number, sizeof(number), "%.0f", value);
    report += std::string(", \"") + name + "\": " + number;
  }
  return CopyText(report + "}", text, bytes);
}

void cudasim_virtual_reset(void) {
  Simulator& sim = Simulator::Get();
  Lock lock(sim.mu);
  sim.ResetTime();
}

void cudasim_host_work(double ns) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0 || !cudasim::CurrentCard().modelled) return;
  sim.clock.Spend(static_cast<cudasim::VirtualNs>(ns));
}

void cudasim_host_checksum(uint64_t bytes) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0) return;
  const cudasim::Card& card = cudasim::CurrentCard();
  if (card.host_checksum_gb_per_s <= 0) return;
  sim.ChargeExtra(card, 1 / card.host_checksum_gb_per_s,
                  static_cast<double>(bytes));
}

void cudasim_host_chose(uint64_t candidates) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0) return;
  const cudasim::Card& card = cudasim::CurrentCard();
  sim.ChargeExtra(card, card.choose_ns_per_candidate,
                  static_cast<double>(candidates));
}

void cudasim_set_background(int background) {
  Simulator::Get().clock.SetBackground(background != 0);
}

void cudasim_operator_cost(void* stream, double flops, double bytes,
                           int dtype) {
  cudasim::ChargeKernel(stream, flops, bytes, dtype, true);
}

void cudasim_copy_cost(void* handle, int to_device, double bytes) {
  Simulator& sim = Simulator::Get();
  if (sim.config.devices == 0 || !cudasim::CurrentCard().modelled) return;
  Lock lock(sim.mu);
  cudasim::Stream* stream = sim.streams.Find(reinterpret_cast<uint64_t>(handle),
                                             cudasim::ThisThread().device);
  if (stream == nullptr) return;
  sim.clock.Copy(cudasim::CardOf(stream->device), stream,
                 to_device != 0 ? cudasim::Route::kUp : cudasim::Route::kDown,
                 /*pageable=*/true, static_cast<uint64_t>(bytes));
}

void cudasim_kernel_cost(void* stream, double flops, double bytes, int dtype) {
  cudasim::ChargeKernel(stream, flops, bytes, dtype, false);
}

}  // extern "C"
#pragma GCC visibility pop
