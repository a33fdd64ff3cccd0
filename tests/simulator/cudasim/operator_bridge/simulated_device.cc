// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

#include <dlfcn.h>

namespace cudasim::bridge {

SimulatedDevice SimulatedDevice::instance_;

std::string SimulatedDevice::Connect() {
  if (connected()) return "";
  // RTLD_NOLOAD: only a device that is already there counts.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return "libcuda.so.1 is not loaded; load the simulated libcuda.so.1 and "
           "libcudart.so.13 before importing torch";
  }
  std::string missing;
  auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(
        dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  decltype(&cudasim_arena_base) arena_base = nullptr;
  decltype(&cudasim_arena_size) arena_size = nullptr;
  decltype(&cudasim_delta) delta = nullptr;
  decltype(&cudasim_note_access) note_access = nullptr;
  find("cudasim_arena_base", arena_base);
  find("cudasim_arena_size", arena_size);
  find("cudasim_delta", delta);
  decltype(&cudasim_numbers) numbers = nullptr;
  decltype(&cudasim_is_phantom) is_phantom = nullptr;
  find("cudasim_numbers", numbers);
  find("cudasim_is_phantom", is_phantom);
  find("cudasim_mode", mode_);
  find("cudasim_time_is_kept", time_is_kept_);
  find("cudasim_is_modelled", is_modelled_);
  find("cudasim_card_figure", card_figure_);
  find("cudasim_load_cublas", load_cublas_);
  find("cudasim_operator_cost", operator_cost_);
  find("cudasim_copy_cost", copy_cost_);
  find("cudasim_broken", broken_);
  find("cudasim_device_error", device_error_);
  find("cudasim_range_is_accessible", range_is_accessible_);
  find("cudasim_begin_operator", begin_operator_);
  find("cudasim_note_access", note_access);
  find("cudasim_hold_ranges", hold_ranges_);
  find("cudasim_release_ranges", release_ranges_);
  find("cudasim_count_bridged", count_bridged_);
  find("cudasim_captures", captures_);
  find("cudasim_stream_capture", stream_capture_);
  find("cudasim_capture_operator", capture_operator_);
  find("cudasim_on_capture_end", on_capture_end_);
  if (!missing.empty()) {
    return "the loaded libcuda.so.1 has no " + missing +
           ": it is not the simulated device (or another version of it)";
  }
  numbers_ = numbers() != 0;
  if (numbers_ && is_phantom() != 0) {
    return "device memory is phantom (CUDASIM_PHANTOM=1), there are no bytes "
           "for operators to compute on; set CUDASIM_NUMBERS=off";
  }
  arena_base_ = arena_base();
  arena_size_ = arena_size();
  delta_ = delta();
  note_access_ = note_access;  // last: connected() is true from here on
  return "";
}

}  // namespace cudasim::bridge
