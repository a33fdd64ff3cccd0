// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/backward.h"

#include <ATen/record_function.h>

#include <memory>

#include "python_shim/torch_bridge/base/entry_point.h"

namespace stratalloc {
namespace {

constexpr auto kNodes = at::RecordScope::BACKWARD_FUNCTION;

std::unique_ptr<at::ObserverContext> Nothing(const at::RecordFunction&) {
  return nullptr;
}
void NothingAtEnd(const at::RecordFunction&, at::ObserverContext*) {}

bool Followed() { return at::getStepCallbacksUnlessEmpty(kNodes).has_value(); }

struct Followers {
  at::CallbackHandle empty = 0, bridge = 0;
};

// torch names nobody's callback, but numbers them upwards, and without the one
// of the bridge nobody follows.
Followers Find() {
  TORCH_CHECK(Followed(),
              "nobody follows backward here: call stratalloc.enable() first");
  const at::CallbackHandle empty = at::addGlobalCallback(
      at::RecordFunctionCallback(&Nothing, &NothingAtEnd).scopes({kNodes}));
  at::disableCallback(empty);
  for (at::CallbackHandle each = empty - 1; each > 0; --each) {
    at::disableCallback(each);
    if (!Followed()) return {empty, each};
    at::reenableCallback(each);
  }
  at::removeCallback(empty);
  TORCH_CHECK(false,
              "more than one callback follows backward here, and which is the "
              "bridge's is not known: measure without a profiler");
}

void Set(at::CallbackHandle callback, bool on) {
  (on ? at::reenableCallback : at::disableCallback)(callback);
}

}  // namespace
}  // namespace stratalloc

int stratalloc_bench_follow_backward(int who, char* message, int bytes) {
  return stratalloc::RunEntryPoint(message, bytes, [&] {
    static const stratalloc::Followers followers = stratalloc::Find();
    stratalloc::Set(followers.bridge, who == 1);
    stratalloc::Set(followers.empty, who == 2);
  });
}
