// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/late_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/operator_bridge/registration.h"

namespace cudasim::bridge {

std::atomic<bool> late_operators_noted{false};

namespace {

std::atomic<bool> listening{false};
std::mutex mutex;
std::vector<c10::OperatorName> noted;

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    if (!listening.load()) return;  // the replay of what there is
    std::lock_guard<std::mutex> lock(mutex);
    noted.push_back(op.operator_name());
    late_operators_noted.store(true);
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

// Where a kernel was registered is only in the dispatcher's own description, a
// line per kernel, newest first: "CUDA: registered at file:line [...]" and
// "CUDA (inactive): ..." for those below it. The oldest is the operator's own.
bool WrittenInPython(const c10::OperatorHandle& op) {
  std::istringstream state(op.dumpState());
  bool python = false;
  for (std::string line; std::getline(state, line);) {
    if (line.compare(0, 5, "CUDA:") == 0 || line.compare(0, 5, "CUDA[") == 0 ||
        line.compare(0, 6, "CUDA (") == 0) {
      python = line.find(".py:") != std::string::npos ||
               line.find("/dev/null:") != std::string::npos;
    }
  }
  return python;
}

}  // namespace

void ListenForOperators() {
  if (listening.load()) return;
  static auto* const registration = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>()));
  (void)registration;  // unregistering at exit helps nobody
  listening.store(true);
}

int BridgeNotedOperators() {
  std::vector<c10::OperatorName> names;
  {
    std::lock_guard<std::mutex> lock(mutex);
    names.swap(noted);
    late_operators_noted.store(false);
  }
  int bridged = 0;
  std::vector<c10::OperatorName> waiting;
  for (const c10::OperatorName& name : names) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value()) continue;  // gone again
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      waiting.push_back(name);  // its library may still be loading
    } else if (!WrittenInPython(*op) && BridgeLate(*op)) {
      ++bridged;
    }
  }
  std::lock_guard<std::mutex> lock(mutex);
  noted.insert(noted.end(), waiting.begin(), waiting.end());
  return bridged;
}

}  // namespace cudasim::bridge
