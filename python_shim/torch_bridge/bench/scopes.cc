// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/bench/scopes.h"

#include <algorithm>
#include <chrono>

#include "python_shim/c_api.h"

double stratalloc_bench_scopes_ns(int pairs) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < pairs; ++i) {
    stratalloc_scope_push(0, 0, 0);
    stratalloc_scope_pop();
  }
  const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
  return taken.count() / std::max(pairs, 1);
}
