// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/bridge.h"

#include <exception>
#include <mutex>
#include <string>

#include "tests/simulator/cudasim/operator_bridge/accounting.h"
#include "tests/simulator/cudasim/operator_bridge/half_precision.h"
#include "tests/simulator/cudasim/operator_bridge/late_operators.h"
#include "tests/simulator/cudasim/operator_bridge/registration.h"
#include "tests/simulator/cudasim/operator_bridge/shadow_bytes.h"
#include "tests/simulator/cudasim/operator_bridge/simulated_device.h"

#define CUDASIM_EXPORT __attribute__((visibility("default")))

namespace cudasim::bridge {
namespace {

std::mutex install_mutex;
bool installed = false;
Registered registered;
std::string install_error;

}  // namespace

int Install() {
  std::lock_guard<std::mutex> lock(install_mutex);
  if (installed) {
    BridgeNotedOperators();
    return registered.bridged;
  }
  install_error = SimulatedDevice::Get().Connect();
  if (!install_error.empty()) return -1;
  try {
    registered = RegisterOperators();
    ListenForOperators();
    ShadowBytes::Connect();
    installed = true;
    return registered.bridged;
  } catch (const std::exception& e) {
    install_error = std::string("PyTorch refused a registration: ") + e.what();
    return -1;
  }
}

}  // namespace cudasim::bridge

extern "C" {

CUDASIM_EXPORT int cudasim_bridge_install(void) {
  return cudasim::bridge::Install();
}

CUDASIM_EXPORT const char* cudasim_bridge_error(void) {
  return cudasim::bridge::install_error.c_str();
}

CUDASIM_EXPORT long cudasim_bridge_count(void) {
  return cudasim::bridge::BridgedCalls();
}

CUDASIM_EXPORT long cudasim_bridge_widened(void) {
  return cudasim::bridge::WidenedCalls();
}

CUDASIM_EXPORT int cudasim_bridge_refused(void) {
  return cudasim::bridge::registered.refused;
}

CUDASIM_EXPORT void cudasim_bridge_set_reservation(uint64_t lo, uint64_t hi) {
  cudasim::bridge::SetReservation(lo, hi);
}

CUDASIM_EXPORT void cudasim_bridge_set_owner(int (*holds)(uint64_t)) {
  cudasim::bridge::SetOwner(holds);
}

CUDASIM_EXPORT long cudasim_bridge_storages_outside(void) {
  return cudasim::bridge::StoragesOutside();
}

}  // extern "C"
